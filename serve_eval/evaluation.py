"""The story of a run: a Plan is prepared, an endpoint launched, every task asked and judged, a Report kept."""

from __future__ import annotations

import asyncio
import os
import platform
import sys
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import serve_eval
from serve_eval import folders, judging, origins, pairing, run_folder
from serve_eval.client.client import Client
from serve_eval.concurrency import MOST
from serve_eval.connection import connect
from serve_eval.degradation import degradations
from serve_eval.degradation import told as told_of
from serve_eval.descriptors import ensure_descriptors
from serve_eval.endpoint import (
    LAUNCHERS,
    RETRIES,
    Launching,
    about_endpoint,
    check_launcher,
    last_endpoint,
    launch,
    watch_for_hung,
    with_model,
)
from serve_eval.errors import JournalError, NotComparableError, ServeEvalError
from serve_eval.executions import FOLDER, Executions, permitted
from serve_eval.hung import Hung
from serve_eval.journal import FULL_DISK, NO_ROOM_HINT, Journal
from serve_eval.judgements import FOLDER as JUDGED
from serve_eval.judgements import Judgements, judges_of
from serve_eval.meeting import Seat
from serve_eval.order import arranged
from serve_eval.preparation import PreparedTask, prepare
from serve_eval.probe import probe, reason
from serve_eval.protocol import TASKS
from serve_eval.quirks import quirks
from serve_eval.report.exit_code import exit_code
from serve_eval.rerunning import Rerun, archived, note_asked, set_aside
from serve_eval.runner import Lane, Progress, Session, ask
from serve_eval.sandbox.sandbox import Sandbox
from serve_eval.schema import (
    MEAN,
    Ability,
    Endpoint,
    Isolation,
    Judge,
    Plan,
    Program,
    Question,
    Report,
    Spec,
    TaskReport,
    TaskResult,
    Verdict,
    VerdictOutcome,
    lives,
)
from serve_eval.tally import Tally, replay, take
from serve_eval.validity import MAX_MISSING, remarks
from serve_eval.verdicts import _acceptance
from serve_eval.verdicts._classic import decided_early
from serve_eval.watch import Watch

if TYPE_CHECKING:
    from serve_eval.early import Prefix

SCHEMA_VERSION = 2
LEAST_RETRY_BUDGET = 100
"""Retries that a run may spend however few samples it has."""
VERDICTS = "serve_eval.verdicts"


async def evaluate(
    plan: Plan,
    out_dir: Path,
    *,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    strict: bool = False,
    moved: bool = False,
    launching: Launching | None = None,
    told: Callable[[str], None] = lambda line: None,
    rerun: Rerun = "failed",
    prepared: Sequence[PreparedTask] | None = None,
    seat: Seat | None = None,
) -> Report:
    """Runs a plan in a run folder, or goes on with what is there, and returns the report (also in report.json).

    Secrets are taken from `environ` when the connection is opened and kept in memory only. `strict` makes an undecided
    run fail. `moved` lets a run go on at another base URL. `launching` gives the endpoint when something is to be
    asked (None: `launch`, for this run alone). `told` gets a line now and then about what is waited for. `rerun` says
    what of an earlier session is asked again. `prepared` are the plan's tasks where they are prepared already, or fewer
    samples of them; with a `seat` each sample is sent when another run is about to send it too. Raises ServeEvalError
    for what stops the run; what was had by then is in the folder.
    """
    started_at, began = datetime.now(UTC), time.monotonic()
    origins.include(plan.include_path)
    ensure_descriptors(MOST if plan.limits.concurrency == "auto" else plan.limits.concurrency)
    plan = await with_model(plan, environ)
    if prepared is None:
        prepared = await asyncio.to_thread(prepare, plan)  # reads files: a signal must be heard meanwhile
    _check_pairs(plan, prepared)
    _verdict_rule(plan.verdict)
    if launching is None and not (out_dir / run_folder.PLAN_FILE).exists():
        check_launcher(plan)
    fingerprints = {p.task.name: p.fingerprint for p in prepared}
    warnings: list[str] = []
    with (
        _broken_disk(out_dir),
        run_folder.open_folder(out_dir, plan, fingerprints, moved=moved) as folder,
        ExitStack() as stack,
    ):
        set_aside(folder, plan, prepared, rerun)
        work = _opened(plan, prepared, folder, stack, warnings, rerun)
        endpoint = last_endpoint(plan, folder)
        sandbox = await _sandbox(plan, work, told)
        await judging.check(plan, _judges(work), environ)
        _watch(plan, work, folder, draw=True)
        asks = any(w.unfinished or w.unjudged(itself=True) for w in work)
        if asks or (rerun == "version" and any(lives(w.p.task.name) for w in work)):
            async with (
                (launching or partial(launch, told=told))(plan, prepared, folder) as endpoint,
                connect(plan, endpoint, environ) as client,
            ):
                if rerun == "version":  # which one the server is of, is known only now
                    stack.close()
                    set_aside(folder, plan, prepared, rerun, server=_version_of(await client.describe()))
                    work = _opened(plan, prepared, folder, stack, warnings, rerun)
                    sandbox = sandbox or await _sandbox(plan, work, told)
                    _watch(plan, work, folder, draw=True)
                found, lacking = await probe(client, [w.p for w in work if w.unfinished])
                endpoint = replace(endpoint, info={**endpoint.info, **await client.describe()})
                for line in quirks(plan, endpoint, [w.p.task for w in work]):
                    told(f"warning: {line}")
                session = _session(plan, endpoint, started_at)
                run_folder.note_session(folder, {**session, "abilities": found, "unsupported": lacking})
                able = [w for w in work if w.p.task.name not in lacking]
                first = next((w.p for w in able if w.unfinished), None)
                hung = watch_for_hung(plan, first, endpoint, client, environ, told) if first else None
                before = await client.hidden_retries() if "version" in endpoint.info else {}
                for w in able:
                    if lives(w.p.task.name):
                        pending = [w.tally.samples[i] for i in w.pending_samples()]
                        note_asked(folder, w.p.task, pending, _version_of(endpoint.info))
                await _ask(plan, able, client, folder, progress, hung, seat)
                await _judge_answers(plan, work, folder, environ, progress, itself=client)
                if before and (after := await client.hidden_retries()):
                    retries = {role: max(0, count - before.get(role, 0)) for role, count in after.items()}
                    endpoint = replace(endpoint, info={**endpoint.info, RETRIES: retries})
                    run_folder.note_endpoint(folder, endpoint)
        if not all(w.journal.path.exists() for w in work):
            raise JournalError(f"{folder} was removed during the run; its answers are lost")
        await _run_answers(plan, work, sandbox, progress)
        await _judge_answers(plan, work, folder, environ, progress)
        _score_again(plan, work, folder, stack)
        warnings += about_endpoint(plan, endpoint, folder, [w.p.task for w in work])
        tallies = [w.tally for w in work if not w.p.task.prompt_logprobs]  # those are never streamed
        if plan.limits.stream and any(t.scored for t in tallies) and not any(t.traffic.ttft_s for t in tallies):
            warnings.append("streams were asked for and none came: there are no times to the first token")
        report = _report(plan, work, endpoint, folder, warnings, started_at, time.monotonic() - began, strict=strict)
        run_folder.write_private(folder / run_folder.REPORT_FILE, run_folder.pretty_json(report))
    return report


def judge_again(plan: Plan, out_dir: Path, *, strict: bool = False) -> Report:
    """The report of a run folder under another verdict rule or other references, without asking anything.

    What has no answer counts as failed, and so does an answer that was not judged. The folder keeps its plan and its
    report; it gets what running answers gave that have not been run yet. Raises ServeEvalError where `plan` would not
    ask what the folder holds.
    """
    started_at, began = datetime.now(UTC), time.monotonic()
    saved = run_folder.saved_plan(out_dir)
    origins.include(plan.include_path)
    prepared = prepare(plan)
    _check_pairs(plan, prepared)
    fingerprints = {p.task.name: p.fingerprint for p in prepared}
    warnings: list[str] = []
    with _broken_disk(out_dir), run_folder.open_folder(out_dir, saved, fingerprints) as folder, ExitStack() as stack:
        work = [_open(p, folder, stack, warnings, repeats=plan.repeats, failures_stand=True) for p in prepared]
        if any(w.executions is not None for w in work):
            asyncio.run(_run_answers(plan, work, None, None))
        _score_again(plan, work, folder, stack)
        _watch(plan, work, folder, draw=False)
        endpoint = last_endpoint(saved, folder)
        warnings += about_endpoint(saved, endpoint, folder, [w.p.task for w in work])
        return _report(plan, work, endpoint, folder, warnings, started_at, time.monotonic() - began, strict=strict)


def _report(
    plan: Plan,
    work: Sequence[Work],
    endpoint: Endpoint,
    folder: Path,
    warnings: Sequence[str],
    started_at: datetime,
    wall_s: float,
    *,
    strict: bool,
) -> Report:
    judge = _verdict_rule(plan.verdict)
    more = (*_other_versions(work, endpoint), *_other_code(plan, folder), *archived(folder, [w.p.task for w in work]))
    unsupported = run_folder.unsupported(folder)
    loads = run_folder.loads(folder)
    in_random_order = plan.early_stop is not None or all(load.limits.order == "random" for load in loads)
    tasks = tuple(
        _report_task(w, plan, judge, unsupported.get(w.p.task.name), in_random_order=in_random_order) for w in work
    )
    return Report(
        schema_version=SCHEMA_VERSION,
        plan=plan,
        endpoint=endpoint,
        environment=environment(),
        tasks=tasks,
        loads=loads,
        exit_code=exit_code([t.verdict for t in tasks], strict=strict),
        started_at=started_at.isoformat(timespec="seconds"),
        wall_s=round(wall_s, 3),
        warnings=(*warnings, *more),
    )


@dataclass(slots=True)
class Work:
    """A task under way. `early` looks at it when it may stop early; `note` is why it may not. `executions` are there
    for a task that runs its answers, `judgements` for one that has them judged. `standing` are the positions of
    failures that are not asked again, and with `failures_stand` no judge is either."""

    p: PreparedTask
    journal: Journal
    tally: Tally
    executions: Executions | None = None
    judgements: Judgements | None = None
    early: Prefix | None = None
    note: str | None = None
    standing: frozenset[int] = frozenset()
    failures_stand: bool = False

    @property
    def spared(self) -> bool:
        """Whether an early stop left something unasked."""
        return self.early is not None and self.early.result().stopped

    def pending(self) -> dict[str, Program]:
        """The programs of its answers that are still to be run."""
        if self.executions is None:
            return {}
        return self.executions.pending(self.p.task, self.tally.samples, self.journal.records())

    def unjudged(self, *, itself: bool) -> dict[str, Question]:
        """What is still to be asked about its answers: of the endpoint `itself`, or of judges elsewhere."""
        if self.judgements is None:
            return {}
        records = self.journal.records()
        pending = self.judgements.pending(self.p.task, self.tally.samples, records, again=not self.failures_stand)
        return {name: q for name, q in pending.items() if (q.judge.base_url is None) is itself}

    @property
    def unfinished(self) -> bool:
        decided = self.early is not None and self.early.decision is not None
        return self.tally.scored + len(self.standing) < len(self.tally.samples) and not decided

    def pending_samples(self) -> Iterator[int]:
        """Positions of the samples that are to be asked."""
        return (i for i in self.tally.unanswered() if i not in self.standing)


def _watch(plan: Plan, work: Sequence[Work], folder: Path, *, draw: bool) -> None:
    """Lets the tasks stop early that can, in an order that is drawn for the run and kept when it goes on."""
    if plan.early_stop is None or plan.integration_test:
        return
    from serve_eval.early import watch  # needs scipy, which a run loads while it waits for its first answers

    seed = run_folder.order_seed(folder, draw=draw)
    if seed is None:
        return
    for w in work:
        if w.executions is not None or w.judgements is not None:
            how = "run" if w.judgements is None else "judged"
            w.note = f"no early stop: the answers are {how}, and so scored, after the last one came"
            continue
        limit = float(plan.verdict.options.get("max_missing", MAX_MISSING))  # type: ignore[arg-type]
        w.early, w.note = watch(w.p, w.tally, eps=plan.early_stop, seed=seed, max_missing=limit)
        if w.early is not None:
            w.early.look()


def _open(
    p: PreparedTask,
    folder: Path,
    stack: ExitStack,
    warnings: list[str],
    *,
    repeats: int,
    failures_stand: bool = False,
) -> Work:
    """The journal of a task with what was had, scored again."""
    journal = stack.enter_context(Journal(folder / "samples" / f"{p.task.file_stem}.jsonl"))
    if journal.dropped_bytes:
        torn = f"a torn last record of {journal.dropped_bytes} bytes was dropped"
        warnings.append(f"{p.task.name}: {torn}; its sample is asked again")
    file = f"{p.task.file_stem}.jsonl"
    executions = Executions(folder / FOLDER / file, keep=True) if p.task.program is not None else None
    judgements = Judgements(folder / JUDGED / file) if p.task.questions is not None else None
    at_once = executions is None and judgements is None
    tally = Tally(p.task, p.dataset.samples, _scores(p, folder, stack) if at_once else None, repeats=repeats)
    replay(journal, tally, failures_stand=failures_stand)
    return Work(p, journal, tally, executions, judgements)


def _opened(
    plan: Plan, prepared: Sequence[PreparedTask], folder: Path, stack: ExitStack, warnings: list[str], rerun: Rerun
) -> list[Work]:
    """The tasks of a session with what was had. Under `never`, what failed before stays so."""
    stand = rerun == "never"
    work = [_open(p, folder, stack, warnings, repeats=plan.repeats, failures_stand=stand) for p in prepared]
    for w in work:
        w.standing = frozenset(i for i in w.tally.unanswered() if w.tally.score(i) is not None)
        w.failures_stand = stand
    return work


def _version_of(info: Mapping[str, object]) -> str | None:
    version = info.get("version")
    return version if isinstance(version, str) else None


def _scores(p: PreparedTask, folder: Path, stack: ExitStack) -> BinaryIO:
    return stack.enter_context(run_folder.private_file(folder / "scores" / f"{p.task.file_stem}.jsonl"))


async def _sandbox(plan: Plan, work: Sequence[Work], told: Callable[[str], None]) -> tuple[Sandbox, Isolation] | None:
    """Where answers will run; None where none will. Raises SandboxError before anything is asked for nothing."""
    names = [w.p.task.name for w in work if w.executions is not None and (w.unfinished or w.pending())]
    if not names:
        return None
    sandbox, isolation = await permitted(names, allowed=plan.allow_code_execution)
    told(f"{', '.join(names)}: code that the model writes runs here, by {isolation.name} as user {isolation.uid}")
    return sandbox, isolation


async def _run_answers(
    plan: Plan, work: Sequence[Work], sandbox: tuple[Sandbox, Isolation] | None, progress: Progress | None
) -> None:
    """Runs the answers that have not been run, of tasks that do so."""
    for w in work:
        if w.executions is not None and (programs := w.pending()):
            sandbox = sandbox or await permitted([w.p.task.name], allowed=plan.allow_code_execution)
            await w.executions.run(w.p.task.name, programs, *sandbox, progress)


def _judges(work: Sequence[Work]) -> list[Judge]:
    """The judges who will be asked, each once. Raises PlanError for two of a task with one name."""
    found: list[Judge] = []
    for w in work:
        if w.judgements is not None and (w.unfinished or w.unjudged(itself=False)):
            judges = judges_of(w.p.task, w.p.dataset.samples)
            found += [judge for judge, _ in judges if judge not in found]
    return found


async def _judge_answers(
    plan: Plan,
    work: Sequence[Work],
    folder: Path,
    environ: Mapping[str, str],
    progress: Progress | None,
    itself: Client | None = None,
) -> None:
    """Has the answers judged that have not been, of tasks that do so: by the endpoint `itself`, else by others."""
    report = folder / run_folder.REPORT_FILE
    for w in work:
        if w.judgements is None or not (pending := w.unjudged(itself=itself is not None)):
            continue
        await judging.ask(
            plan,
            w.p.task.name,
            pending,
            w.judgements.path,
            environ,
            itself=itself,
            progress=progress,
            at_first=lambda: report.unlink(missing_ok=True),
        )
        w.judgements = Judgements(w.judgements.path)


def _score_again(plan: Plan, work: Sequence[Work], folder: Path, stack: ExitStack) -> None:
    """Scores the answers that were only counted as they came, with all that is known of them now."""
    for w in work:
        if w.executions is None and w.judgements is None:
            continue
        w.tally = Tally(
            w.p.task,
            w.p.dataset.samples,
            _scores(w.p, folder, stack),
            repeats=plan.repeats,
            executions=w.executions,
            judgements=w.judgements,
        )
        take(w.journal.records(), w.tally, failures_stand=True)


@contextmanager
def _broken_disk(out_dir: Path) -> Iterator[None]:
    """Turns what the operating system refuses, of any file of the run, into a JournalError."""
    try:
        yield
    except OSError as error:
        full = error.errno in FULL_DISK
        place = error.filename or out_dir
        raise JournalError(f"{place}: {error.strerror or error}", hint=NO_ROOM_HINT if full else "") from error


async def _ask(
    plan: Plan,
    work: Sequence[Work],
    client: Client,
    folder: Path,
    progress: Progress | None,
    hung: Hung | None,
    seat: Seat | None,
) -> None:
    """Asks what has no answer and, at the end, once more what failed in a way that may have passed.

    What the engine did is noted in the folder, also when it is stopped.
    """
    limits = plan.limits
    if client.retry_budget is None:
        missing = sum(len(w.tally.samples) - w.tally.scored for w in work)
        client.retry_budget = max(LEAST_RETRY_BUDGET, missing // 4)

    def outdate() -> None:
        """From the first new result on, an earlier report would tell of an earlier state."""
        for name in (run_folder.REPORT_FILE, run_folder.PAGE_FILE):
            (folder / name).unlink(missing_ok=True)

    session = Session(client, order_seed=plan.seed, at_first=outdate, hung=hung)
    answered = sum(w.tally.scored for w in work)
    watch = Watch(answered=answered, max_error_rate=limits.max_error_rate)

    def lane(w: Work) -> Lane:
        if w.early is None:
            order = arranged(w.tally.samples, w.pending_samples(), limits.order, f"{plan.seed}:order:{w.p.task.name}")
        else:
            order = array("q", (i for i in w.early.order if w.tally.score(i) is None))
        meet = None if seat is None else partial(seat.meet, w.p.task.name)
        return Lane(w.p.task.name, w.tally, w.journal, order, w.early, meet)

    def once_more(w: Work) -> Lane:
        name = f"{w.p.task.name}, the failed once more"
        again = (i for i in w.tally.worth_another_pass() if i not in w.standing)
        return Lane(name, w.tally, w.journal, array("q", again))

    try:
        lanes = [lane(w) for w in work if w.unfinished]
        if seat is not None:
            await seat.take((one.name, i) for one in lanes for i in one.positions)
        await ask(session, lanes, progress=progress, watch=watch)
        await ask(session, [once_more(w) for w in work if not w.spared], progress=progress)
    except BaseException:
        with suppress(ServeEvalError, OSError):  # what ended the run is to be told, not this
            run_folder.note_load(folder, session.load())
        raise
    run_folder.note_load(folder, session.load())


def _other_versions(work: Sequence[Work], endpoint: Endpoint) -> list[str]:
    """Where a reference of one's own was taken from another version of the software than answers now."""
    now, found = endpoint.info.get("version"), []
    for w in work:
        runs = None if w.p.reference is None else w.p.reference.runs
        if runs is not None and runs.endpoint is not None and isinstance(now, str) and runs.endpoint != now:
            found.append(
                f"{w.p.task.name}: the reference was taken at version {runs.endpoint}; this endpoint says {now}"
            )
    return found


def _other_code(plan: Plan, folder: Path) -> list[str]:
    """What code of others made the numbers, and where it has changed since answers were had."""
    named = [*((TASKS, task) for task in plan.tasks), (LAUNCHERS, plan.launcher), (VERDICTS, plan.verdict)]
    used = {
        f"{origins.KINDS[folder]}.{name}" for folder, spec in named for name in (spec.name, spec.name.partition(":")[0])
    }
    told = []
    for name, now in origins.loaded().items():
        if name not in used and not name.startswith("scorers."):
            continue
        before = [session.get("extensions", {}).get(name, {}).get("sha256") for session in run_folder.sessions(folder)]
        changed = sorted({digest[:12] for digest in before if digest is not None} - {now.sha256[:12]})
        line = f"{name} is that of {now.origin} (sha256 {now.sha256[:12]})"
        told.append(f"{line}; answers were had when it was {', '.join(changed)}" if changed else line)
    return told


# ------------------------------------------------------------------------------------------- verdict and report


def _verdict_rule(spec: Spec) -> Callable[..., Verdict]:
    rule = folders.load(VERDICTS, spec.name)
    options = folders.check_options(rule, spec.options, f"verdict.{spec.name}")
    return lambda *arguments: rule(*arguments, **options)


def _check_pairs(plan: Plan, prepared: Sequence[PreparedTask]) -> None:
    """Raises NotComparableError when the rule compares sample by sample and there is nothing to compare so: the
    reference has no scores per sample, or the value is no mean of them."""
    rule = sys.modules[folders.load(VERDICTS, plan.verdict.name).__module__]
    if not getattr(rule, "NEEDS_PAIRS", False):
        return
    for p in prepared:
        if p.reference is not None and p.task.aggregation is not MEAN:
            raise NotComparableError(
                f"{p.task.name}: the verdict {plan.verdict.name!r} compares the means of scores, and the value is the "
                f"{p.task.aggregation.name}",
                hint="Judge this task by --verdict classic, in a run of its own.",
            )
        if p.reference is not None and p.reference.runs is None:
            raise NotComparableError(
                f"{p.task.name}: the verdict {plan.verdict.name!r} compares sample by sample, and the reference "
                f"({Path(p.reference.file).name}:{p.reference.line}) has no scores per sample",
                hint="Register runs of your own: serve-eval references register RUN... --references-dir DIR.",
            )


def _report_task(
    w: Work, plan: Plan, judge: Callable[..., Verdict], lacks: Ability | None, *, in_random_order: bool
) -> TaskReport:
    """`lacks` is what the endpoint cannot do; a task that was answered to its end before stays judged."""
    p, tally = w.p, w.tally
    early = None if w.early is None else w.early.result()
    unasked = lacks is not None and w.unfinished
    result = tally.result(spared=unasked or (early is not None and early.stopped))
    if lacks is not None and unasked:
        verdict = _unjudged(p, result, VerdictOutcome.UNSUPPORTED, reason(lacks))
    elif plan.integration_test:
        verdict = _unjudged(p, result, VerdictOutcome.NOT_JUDGED, "INTEGRATION TEST: one sample, no verdict")
    elif p.reference is None:
        verdict = _unjudged(p, result, VerdictOutcome.NO_REFERENCE, p.why_no_reference or "no reference")
    elif early is not None and early.stopped:
        verdict = decided_early(result, p.reference, p.hypothesis, early)
    else:
        pairs, note = pairing.with_reference(p.task, p.dataset, p.reference, tally.runs())
        verdict = judge(result, p.reference, p.hypothesis, pairs)
        if note:
            verdict = replace(verdict, warnings=(*verdict.warnings, note))
        verdict = replace(verdict, early=early)
    if w.note and w.note not in verdict.warnings:
        verdict = replace(verdict, warnings=(*verdict.warnings, w.note))
    traffic = tally.traffic
    if p.task.acceptance_length is not None and p.acceptance is not None:
        verdict = _acceptance.judge(verdict, result, traffic.acceptance, p.task.acceptance_length, p.acceptance)
    judges = () if w.judgements is None else w.judgements.figures(p.task, tally.samples, w.journal.records())
    one_token = p.task.sampling.max_tokens <= 2
    worse = () if not in_random_order else degradations(tally.course(), p.task.metric)
    said = remarks(result, one_token_answers=one_token, stop=p.task.sampling.stop)
    extra = (*p.notes, *judging.remarks(plan, judges), *map(told_of, worse), *said)
    return TaskReport(
        spec=p.spec,
        version=p.task.version,
        dataset={"files": p.dataset.files, "total": p.dataset.total},
        fingerprint=p.fingerprint,
        result=result,
        traffic=traffic,
        reference=p.reference,
        verdict=replace(verdict, protocol=p.protocol, warnings=(*verdict.warnings, *extra)),
        isolations=() if w.executions is None else tuple(w.executions.isolations),
        degradations=worse,
        judges=judges,
    )


def _unjudged(p: PreparedTask, result: TaskResult, outcome: VerdictOutcome, why: str) -> Verdict:
    if result.scored == 0 and outcome is not VerdictOutcome.UNSUPPORTED:
        outcome = VerdictOutcome.ERROR
        why = f"nothing_scored: none of {result.planned} samples has an answer; {why}"
    return Verdict(
        task=result.task,
        outcome=outcome,
        rule="none",
        evaluated=None if outcome is VerdictOutcome.UNSUPPORTED else result.value,
        bounds=result.bounds,
        num_samples=p.hypothesis.num_samples,
        reasons=(why,),
    )


def environment() -> dict[str, object]:
    """Versions of what made the numbers; an optional package counts when it is installed, and is not imported."""
    packages = ("httptools", "lm-eval", "msgspec", "numpy", "scipy", "tensorrt-llm", "uvloop")
    versions = {name: version for name in packages if (version := _version(name))}
    return {
        "serve_eval": serve_eval.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        **({"extensions": extensions} if (extensions := origins.loaded()) else {}),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _session(plan: Plan, endpoint: Endpoint, started_at: datetime) -> dict[str, object]:
    started = started_at.isoformat(timespec="seconds")
    return {"started_at": started, "endpoint": endpoint, "limits": plan.limits, **environment()}
