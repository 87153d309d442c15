"""Run a plan: prepare it, launch an endpoint, ask and judge every task, and keep a report."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.evaluation.ask_tasks import ask_again, ask_tasks, note_cut_off
from serve_eval.evaluation.build_report import check_pairs
from serve_eval.evaluation.earlier_run import Rerun
from serve_eval.evaluation.engine.load_session import MOST
from serve_eval.evaluation.engine.lockstep import Participant
from serve_eval.evaluation.launch import Launching, check_launcher, last_endpoint, with_model
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
from serve_eval.evaluation.report_run import report_run, save_report
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
from serve_eval.evaluation.settle import settle
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.evaluation.use_endpoint import (
    needs_endpoint,
    note_endpoint,
    open_endpoint,
    probe_endpoint,
    refuse_other_sampling,
)
from serve_eval.evidence.engine_counters import Companions
from serve_eval.plan.check import check_expected
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import with_scope
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.processes.rare_collections import rare_collections
from serve_eval.processes.resources import ensure_descriptors
from serve_eval.schema import Plan, Progress, Report
from serve_eval.storage import order_seed, run_folder


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
        plan = await settle(plan, out_dir, environ, notify)
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
