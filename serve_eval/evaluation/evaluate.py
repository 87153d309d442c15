"""Run a plan: prepare it, launch an endpoint, ask and judge every task, and keep a report.

A report is made of what the folder holds, with remarks about connections, streams and first tokens.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.evaluation import settle
from serve_eval.evaluation.ask_tasks import ask_again, ask_tasks, note_cut_off
from serve_eval.evaluation.build_report import check_pairs, report_on
from serve_eval.evaluation.earlier_run import Rerun
from serve_eval.evaluation.engine.load_session import MOST
from serve_eval.evaluation.engine.start_times import Participant
from serve_eval.evaluation.launch import (
    Launching,
    about_endpoint,
    check_launcher,
    last_endpoint,
    with_model,
)
from serve_eval.evaluation.open_tasks import (
    judge_answers,
    open_tasks,
    refuse_identical,
    replay_tasks,
    run_answers,
    score_again,
    stop_early,
)
from serve_eval.evaluation.preflight import check_margins
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.run_cost import check_budget, find_spent_limit, note_spent_limit
from serve_eval.evaluation.run_session import (
    CheckDefaults,
    RunSession,
    Stopwatch,
    SuitePart,
    allow_any,
    ignore,
    log_report,
    log_session,
    open_session,
    warn_of_old_answers,
)
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.evaluation.use_endpoint import (
    needs_endpoint,
    note_endpoint,
    open_endpoint,
    probe_endpoint,
    refuse_other_sampling,
)
from serve_eval.evidence import engine_counters
from serve_eval.evidence.engine_counters import Companions
from serve_eval.plan.check import check_expected
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.processes.rare_collections import rare_collections
from serve_eval.processes.resources import ensure_descriptors
from serve_eval.schema import AnswerSpan, Plan, Progress, Report, Traffic
from serve_eval.storage import order_seed, run_folder
from serve_eval.storage.answer_origins import (
    count_unproven,
    describe_proofs,
    describe_unproven,
    judges_proofs,
)
from serve_eval.storage.journal import withdrawals
from serve_eval.storage.report_file import write_report


@with_scope
async def evaluate(
    plan: Plan,
    out_dir: Path,
    *,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    moved: bool = False,
    grows: bool = False,
    launching: Launching | None = None,
    notify: Callable[[str], None] = ignore,
    rerun: Rerun = "failed",
    prepared: Sequence[PreparedTask] | None = None,
    participant: Participant | None = None,
    seed: int | None = None,
    companions: Companions | None = None,
    part_of: str = "",
    part: SuitePart | None = None,
    hand_on: Callable[[Sequence[PreparedTask]], object] = lambda prepared: None,
    check_defaults: CheckDefaults = allow_any,
) -> Report:
    """Run a plan in a run folder, or resume the run there, and return the report.

    The plan must be the caller's own: it is signed as such in the folder, and the caller is
    responsible for what it runs and reaches. Secrets are read from `environ` when the connection
    opens, and stay in memory.

    * `strict`: an undecided run fails.
    * `moved`: the run may resume at another base URL.
    * `grows`: the plan may have more tasks than the run in the folder, whose answers are kept.
    * `launching`: yields the endpoint if something must be asked (None: `launch`, for this run).
    * `notify`: occasionally receives a line about what the run waits for.
    * `rerun`: which answers of earlier sessions are asked again.
    * `prepared`: the plan's tasks, if already prepared; they may have fewer samples.
    * `participant`: each sample is sent when another run is about to send it too.
    * `seed`: of the random order of a run without answers (None: the plan's `limits.order_seed`,
      else drawn).
    * `companions`: the runs that the caller has at the same time, whose requests servers count too.
    * `part_of`: the command whose comparison or check asks this run ("": it stands for itself).
    * `part`: what the suite of the run shares with it (None: there is none).
    * `hand_on`: receives the prepared tasks before the first request.
    * `check_defaults`: receives the endpoint's sampling defaults before the first sample, and may
      raise a ServeEvalError.

    The report is also in report.json. Raises ServeEvalError for anything that stops the run;
    answers so far stay in the folder.
    """
    clock = Stopwatch()
    plan, prepared = await _prepare(plan, prepared, out_dir, launching, environ, notify)
    hand_on(prepared)
    with (
        rare_collections(),
        open_session(
            plan,
            prepared,
            out_dir,
            clock,
            moved=moved,
            grows=grows,
            own=True,
            environ=environ,
            progress=progress,
            notify=notify,
        ) as session,
        log_session(session.log, plan, session.count_retries),
    ):
        session.companions = companions or session.companions
        session.part_of, session.check_defaults = part_of, check_defaults
        session.rerun = rerun not in ("never", "failed")
        session.part = part or session.part
        await open_tasks(session, rerun, seed)
        if needs_endpoint(session, rerun):
            with note_cut_off(session):
                async with open_endpoint(session, launching, rerun) as client:
                    able = await probe_endpoint(session, client)
                    if plan.accept_identical:
                        able = await _accept_identical(session, client, able)
                    await ask_tasks(session, able, client, participant)
                    await judge_answers(session, itself=client)
                    await note_endpoint(session, client)
                    await ask_again(session, client)
        else:
            refuse_other_sampling(session)
            if any(w.unfinished for w in session.tasks) and (limit := find_spent_limit(session)):
                note_spent_limit(session, limit)
            else:
                warn_of_old_answers(session)
        session.check_journals()
        await run_answers(session)
        await judge_answers(session)
        await session.scoring.wait_for(score_again, session)
        report = save_report(session, strict=strict)
        log_report(session.log, report, session.count_retries())
        return report


@with_scope
def judge_again(plan: Plan, out_dir: Path, *, strict: bool = False, asked: bool = False) -> Report:
    """Report on a run folder under another verdict rule or other references, without asking.

    Samples without an answer count as failed, and so do answers that were not judged. The folder
    keeps its plan and its report; results of running answers that had not been run yet are added to
    it. `asked`: the folder was just asked, by the shards of a run, so that the report has the
    remarks of a session that asks. Raises ServeEvalError if `plan` would not ask what the folder
    holds.
    """
    clock = Stopwatch()
    saved = run_folder.read_plan(out_dir)
    extensions.include(plan.include_path)
    prepared = prepare(plan)
    check_pairs(plan, prepared)
    refuse_identical(out_dir)
    with open_session(plan, prepared, out_dir, clock, asked_plan=saved) as session:
        session.tasks = replay_tasks(session, failures_stand=True)
        if any(w.executions is not None for w in session.tasks):
            asyncio.run(run_answers(session))
        score_again(session)
        session.seeds = order_seed.read_seeds(session.folder, saved)
        stop_early(session, asking=False)
        session.endpoint = last_endpoint(saved, session.noted.read())
        refuse_other_sampling(session)
        return report_run(session, strict=strict, asked=asked)


async def _accept_identical(
    session: RunSession, client: Client, able: Sequence[TaskRun]
) -> list[TaskRun]:
    from serve_eval.evaluation.identity import accept_identical

    return await accept_identical(session, client, able)


async def _prepare(
    plan: Plan,
    prepared: Sequence[PreparedTask] | None,
    out_dir: Path,
    launching: Launching | None,
    environ: Mapping[str, str],
    notify: Callable[[str], None],
) -> tuple[Plan, Sequence[PreparedTask]]:
    """Return the plan with everything settled before the first request, and its tasks.

    Raises ServeEvalError for what cannot be asked or judged, before a folder is created.
    """
    extensions.include(plan.include_path)
    check_expected(plan.expect)
    ensure_descriptors(MOST if plan.limits.concurrency == "auto" else plan.limits.concurrency)
    plan = await with_model(plan, environ, notify=notify)
    if prepared is None:
        plan = await settle.settle(plan, out_dir, environ, notify)
        with rare_collections():
            # In a thread: it reads files, and a signal must get through meanwhile.
            prepared = await asyncio.to_thread(prepare, plan)
    check_pairs(plan, prepared)
    load_verdict_rule(plan.verdict.name).check_options(plan.verdict.options)
    if not run_folder.holds_run(out_dir):
        check_margins(plan, prepared)
        check_budget(plan, prepared)
        if launching is None:
            check_launcher(plan)
    return plan, prepared


def report_run(session: RunSession, *, strict: bool, asked: bool = False) -> Report:
    """Return the report of the folder's content, without writing anything.

    `asked`: with the remarks about a run that was just asked.
    """
    more = _about_streams(session) if asked else ()
    unproven = _count_unproven(session)
    return report_on(
        session,
        [*describe_unproven(unproven), *_remarks(session), *more],
        strict=strict,
        unproven=unproven,
    )


def _count_unproven(session: RunSession) -> int:
    """Return the number of answers, also of judges, that count although nothing proves them.

    Reads no journal of a settled session if steps.jsonl names none.
    """
    found = 0
    for w in session.tasks:
        read = [(w.journal.path, session.proofs)]
        if w.judgements is not None:
            read.append((w.judgements.path, judges_proofs(w.judgements.path)))
        for path, proofs in read:
            if proofs.trusted or not session.settled:
                found += count_unproven(path, proofs)
    return found


def save_report(session: RunSession, *, strict: bool) -> Report:
    """Return the report of a run that was asked, and write it to the folder."""
    report = report_run(session, strict=strict, asked=True)
    write_report(session.folder, report)
    return report


def _remarks(session: RunSession) -> Iterator[str]:
    """Yield the session's warnings and remarks about connections, endpoint and first tokens."""
    noted = session.noted.read()
    yield from session.warnings
    yield from _about_connections(session)
    yield from about_endpoint(
        session.asked_plan,
        session.endpoint,
        noted,
        [w.prepared.task for w in session.tasks],
    )
    yield from remarks(
        merge_spans(w.accumulator.traffic for w in session.tasks),
        [one.endpoint.base_url for one in noted],
    )
    for one in noted:
        yield from () if one.thoughts is None else one.thoughts.remarks()
    yield from engine_counters.remarks([one.engine for one in noted])
    yield from settle.remarks([w.prepared for w in session.tasks], settle.list_abilities(noted))


def _about_connections(session: RunSession) -> Iterator[str]:
    """Yield warnings about connections, of the endpoint or of judges, that were out of step."""
    yield from _about_outages(session)
    yield from describe_proofs(session.proofs, [w.journal.path for w in session.tasks])
    for w in session.tasks:
        if w.judgements is not None:
            path = w.judgements.path
            yield from describe_proofs(
                judges_proofs(path), [path], f"the judges of {w.prepared.task.name}"
            )


def _about_outages(session: RunSession) -> Iterator[str]:
    """Yield a warning if no server listened for a while, with the answers that it cost."""
    loads = session.noted.loads()
    if not (outages := sum(load.outages for load in loads)):
        return
    times = "once" if outages == 1 else f"{outages} times"
    away_s = sum(load.away_s for load in loads)
    journals = [w.journal.path for w in session.tasks]
    gone = sum(len(withdrawals(path)) for path in journals if path.exists())
    some = f"{gone} answers were" if gone != 1 else "1 answer was"
    cost = f": {some} withdrawn and asked again, since nothing proves them" if gone else ""
    yield f"the endpoint was away {times}, for {away_s:.1f} s{cost}"


def _about_streams(session: RunSession) -> Iterator[str]:
    """Yield a warning if streams were requested but none came."""
    # Requests for log-probabilities of prompts are never streamed.
    tallies = [w.accumulator for w in session.tasks if not w.prepared.task.prompt_logprobs]
    if (
        session.plan.limits.stream
        and any(t.scored for t in tallies)
        and not any(t.traffic.ttft_s for t in tallies)
    ):
        yield "streams were requested but none came: times to the first token are not available"


Spans = Mapping[str, AnswerSpan]


def merge_spans(traffics: Iterable[Traffic]) -> Spans:
    """Return the answers of several tasks by fingerprint, in the order of their beginnings."""
    found: dict[str, AnswerSpan] = {}
    for traffic in traffics:
        for name, one in traffic.system_fingerprints.items():
            other = found.get(name, one)
            found[name] = AnswerSpan(
                answers=one.answers + (other.answers if name in found else 0),
                first_s=min(one.first_s, other.first_s),
                last_s=max(one.last_s, other.last_s),
            )
    return dict(sorted(found.items(), key=lambda item: item[1].first_s))


def remarks(spans: Spans, addresses: Sequence[str]) -> list[str]:
    """Return a warning if the answers carry several fingerprints; `addresses` are the sessions'.

    vLLM's names its version and a hash of its configuration. Hosted models change theirs without
    notice: several are stated, not accused. Fingerprints one after the other at several addresses
    are expected, and another remark names the addresses.
    """
    if len(spans) < 2:
        return []
    replaced = all(a.last_s <= b.first_s for a, b in pairwise(spans.values()))
    if not replaced:
        each = ", ".join(f"{name} ({one.answers} answers)" for name, one in spans.items())
        return [
            f"the answers carry {len(spans)} system_fingerprints, mixed from"
            f" {_time(sorted(one.first_s for one in spans.values())[1])} on: {each}: servers of"
            " different configurations answer at one address"
        ]
    if len(set(addresses)) > 1:
        return []
    first, *later = spans.items()
    parts = [f"{first[0]} ({first[1].answers} answers)"]
    parts += [f"from {_time(one.first_s)} on {name} ({one.answers} answers)" for name, one in later]
    return [
        f"the answers carry {len(spans)} system_fingerprints, one after the other:"
        f" {', '.join(parts)}: the server was replaced, or its configuration changed, during the"
        " run"
    ]


def _time(seconds: float) -> str:
    return f"{datetime.fromtimestamp(seconds, UTC):%H:%M:%S} UTC"
