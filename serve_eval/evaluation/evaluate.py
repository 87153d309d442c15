"""The story of a run: a Plan is prepared, an endpoint launched, every task asked and judged, a Report kept."""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from serve_eval.client.client import Client
from serve_eval.client.connection import connect, hidden_in_errors
from serve_eval.errors import JournalError, ServeEvalError
from serve_eval.evaluation import first_token
from serve_eval.evaluation.attribution.trace import noted
from serve_eval.evaluation.attribution.trace_files import noted_from_files
from serve_eval.evaluation.build_report import check_pairs, environment, report_on, verdict_rule
from serve_eval.evaluation.capabilities import probe
from serve_eval.evaluation.endpoint import deployment
from serve_eval.evaluation.endpoint.hang_detector import Hung
from serve_eval.evaluation.endpoint.launch import (
    Launching,
    about_endpoint,
    check_launcher,
    last_endpoint,
    launch,
    watch_for_hung,
    with_model,
)
from serve_eval.evaluation.endpoint.server_quirks import quirks
from serve_eval.evaluation.engine.circuit_breaker import Watch
from serve_eval.evaluation.engine.concurrency import MOST
from serve_eval.evaluation.engine.degradation_alarm import Alarm
from serve_eval.evaluation.engine.lockstep import Seat
from serve_eval.evaluation.engine.order import arranged, task_seed
from serve_eval.evaluation.engine.reply_proofs import FILE as STEPS_FILE
from serve_eval.evaluation.engine.reply_proofs import Proofs, of_judgements
from serve_eval.evaluation.engine.reply_proofs import told as told_of_steps
from serve_eval.evaluation.engine.runner import Lane, Session, ask
from serve_eval.evaluation.judges import ask_judges, check_judges
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.rerun import Rerun, note_asked, set_aside
from serve_eval.evaluation.storage import order_seed, run_folder, server_logs
from serve_eval.evaluation.storage.executions import permitted
from serve_eval.evaluation.storage.journal import FULL_DISK, NO_ROOM_HINT
from serve_eval.evaluation.storage.judgements import Judgements, judges_of
from serve_eval.evaluation.storage.order_seed import OrderSeeds
from serve_eval.evaluation.task_run import (
    Work,
    may_stop_early,
    open_task,
    opened,
    random_order,
    score_again,
    scoring_of,
    settle_scores,
)
from serve_eval.masking import Masking
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import scoped
from serve_eval.processes.descriptors import ensure_descriptors
from serve_eval.sandbox.sandbox import Sandbox
from serve_eval.schema import Endpoint, Isolation, Judge, Plan, Progress, Report, ServerInfo, lives

LEAST_RETRY_BUDGET = 100
"""Retries that a run may spend however few samples it has."""


@scoped
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
    seed: int | None = None,
) -> Report:
    """Runs a plan in a run folder, or goes on with what is there, and returns the report (also in report.json).

    The plan is the caller's own, who answers for what it runs and reaches: it is signed as such in the folder. Secrets
    are taken from `environ` when the connection is opened and kept in memory only. `strict` makes an undecided
    run fail. `moved` lets a run go on at another base URL. `launching` gives the endpoint when something is to be
    asked (None: `launch`, for this run alone). `told` gets a line now and then about what is waited for. `rerun` says
    what of an earlier session is asked again. `prepared` are the plan's tasks where they are prepared already, or fewer
    samples of them; with a `seat` each sample is sent when another run is about to send it too. `seed` is that of the
    random order of a run that has no answer yet (None: the plan's `limits.order_seed`, else it is drawn). Raises
    ServeEvalError for what stops the run; what was had by then is in the folder.
    """
    started_at, began = datetime.now(UTC), time.monotonic()
    extensions.include(plan.include_path)
    ensure_descriptors(MOST if plan.limits.concurrency == "auto" else plan.limits.concurrency)
    plan = await with_model(plan, environ, told=told)
    if prepared is None:
        plan = await first_token.settled(plan, out_dir, environ)
        prepared = await asyncio.to_thread(prepare, plan)  # reads files: a signal must be heard meanwhile
    check_pairs(plan, prepared)
    verdict_rule(plan.verdict)
    if launching is None and not (out_dir / run_folder.PLAN_FILE).exists():
        check_launcher(plan)
    fingerprints = {p.task.name: p.fingerprint for p in prepared}
    warnings: list[str] = []
    with (
        _broken_disk(out_dir),
        hidden_in_errors(plan.connection, environ),
        run_folder.open_folder(out_dir, plan, fingerprints, moved=moved, own=True) as folder,
        scoring_of(plan, prepared) as scoring,
        ExitStack() as stack,
    ):
        set_aside(folder, plan, prepared, rerun)
        work = await scoring.waited(opened, plan, prepared, folder, stack, warnings, rerun, scoring)
        endpoint = last_endpoint(plan, folder)
        sandbox = await _sandbox(plan, work, told)
        await check_judges(plan, _judges(work), environ)
        seeds = order_seed.settled(folder, plan, plan.limits.order_seed if seed is None else seed)
        if seed is None and (line := order_seed.not_followed(plan, seeds.samples)) is not None:
            warnings.append(line)
        may_stop_early(plan, work, seeds, folder)
        asks = any(w.unfinished or w.unjudged(itself=True) for w in work)
        if asks or (rerun == "version" and any(lives(w.p.task.name) for w in work)):
            async with (
                (launching or partial(launch, told=told))(plan, prepared, folder) as endpoint,
                connect(plan, endpoint, environ) as client,
            ):
                client.door.told = told
                if rerun == "version":  # which one the server is of, is known only now
                    stack.close()
                    set_aside(folder, plan, prepared, rerun, server=ServerInfo.read(await client.describe()).version)
                    work = await scoring.waited(opened, plan, prepared, folder, stack, warnings, rerun, scoring)
                    sandbox = sandbox or await _sandbox(plan, work, told)
                    may_stop_early(plan, work, seeds, folder)
                if client.masking:
                    stack.callback(_hide_in_logs, folder, endpoint, client.masking, told)
                found, lacking = await probe(client, [w.p for w in work if w.unfinished])
                endpoint = endpoint.with_info(**await client.describe())
                endpoint = await deployment.seen(endpoint, client)
                for line in first_token.remarks([w.p for w in work], found):
                    told(f"warning: {line}")
                for line in (*quirks(plan, endpoint, [w.p.task for w in work]), *deployment.remarks(endpoint.info)):
                    told(f"warning: {line}")
                session = _session(plan, endpoint, started_at)
                run_folder.note_session(folder, {**session, "abilities": found, "unsupported": lacking})
                able = [w for w in work if w.p.task.name not in lacking]
                first = next((w.p for w in able if w.unfinished), None)
                hung = watch_for_hung(plan, first, endpoint, client, environ, told) if first else None
                before = await client.hidden_retries() if endpoint.info.version is not None else {}
                for w in able:
                    if lives(w.p.task.name):
                        pending = [w.tally.samples[i] for i in w.pending_samples()]
                        note_asked(folder, w.p.task, pending, endpoint.info.version)
                journals = {w.p.task.name: w.journal for w in able}
                async with (
                    noted_from_files(client, journals, folder, warnings.append),
                    noted(client, journals, folder),
                ):
                    await _ask(plan, able, client, folder, seeds, progress, hung, seat, told)
                await _judge_answers(plan, work, folder, environ, progress, told, itself=client)
                if before and (after := await client.hidden_retries()):
                    retries = {role: max(0, count - before.get(role, 0)) for role, count in after.items()}
                    endpoint = endpoint.with_info(hidden_retries=retries)
                endpoint = await deployment.seen_again(endpoint, client)
                run_folder.note_endpoint(folder, endpoint)
        if not all(w.journal.path.exists() for w in work):
            raise JournalError(f"{folder} was removed during the run; its answers are lost")
        await _run_answers(plan, work, sandbox, progress)
        await _judge_answers(plan, work, folder, environ, progress, told)
        await scoring.waited(score_again, plan, work, folder, stack, scoring)
        warnings += _told_of_connections(work, folder)
        warnings += about_endpoint(plan, endpoint, folder, [w.p.task for w in work])
        warnings += first_token.remarks([w.p for w in work], first_token.noted(folder))
        tallies = [w.tally for w in work if not w.p.task.prompt_logprobs]  # those are never streamed
        if plan.limits.stream and any(t.scored for t in tallies) and not any(t.traffic.ttft_s for t in tallies):
            warnings.append("streams were asked for and none came: there are no times to the first token")
        report = report_on(
            plan, work, endpoint, folder, seeds, warnings, started_at, time.monotonic() - began, strict=strict
        )
        run_folder.write_private(folder / run_folder.REPORT_FILE, run_folder.pretty_json(report))
    return report


@scoped
def judge_again(plan: Plan, out_dir: Path, *, strict: bool = False) -> Report:
    """The report of a run folder under another verdict rule or other references, without asking anything.

    What has no answer counts as failed, and so does an answer that was not judged. The folder keeps its plan and its
    report; it gets what running answers gave that have not been run yet. Raises ServeEvalError where `plan` would not
    ask what the folder holds.
    """
    started_at, began = datetime.now(UTC), time.monotonic()
    saved = run_folder.saved_plan(out_dir)
    extensions.include(plan.include_path)
    prepared = prepare(plan)
    check_pairs(plan, prepared)
    fingerprints = {p.task.name: p.fingerprint for p in prepared}
    warnings: list[str] = []
    with (
        _broken_disk(out_dir),
        run_folder.open_folder(out_dir, saved, fingerprints) as folder,
        scoring_of(plan, prepared) as scoring,
        ExitStack() as stack,
    ):
        work = [open_task(plan, p, folder, stack, warnings, scoring, failures_stand=True) for p in prepared]
        if any(w.executions is not None for w in work):
            asyncio.run(_run_answers(plan, work, None, None))
        score_again(plan, work, folder, stack, scoring)
        seeds = order_seed.kept(folder, saved)
        may_stop_early(plan, work, seeds)
        endpoint = last_endpoint(saved, folder)
        warnings += _told_of_connections(work, folder)
        warnings += about_endpoint(saved, endpoint, folder, [w.p.task for w in work])
        warnings += first_token.remarks([w.p for w in work], first_token.noted(folder))
        return report_on(
            plan, work, endpoint, folder, seeds, warnings, started_at, time.monotonic() - began, strict=strict
        )


def _hide_in_logs(folder: Path, endpoint: Endpoint, masking: Masking, told: Callable[[str], None]) -> None:
    """Takes what the servers were sent out of their logs and traces."""
    files = server_logs.log_files(folder, run_folder.sessions(folder), endpoint.info)
    for path in server_logs.hide_secrets([*files, *server_logs.trace_files(endpoint.info)], masking):
        told(f"warning: {path} holds a secret and cannot be written: remove it, or keep it as secret as that")


def _told_of_connections(work: Sequence[Work], folder: Path) -> Iterator[str]:
    """Return warnings about connections, of the endpoint and of judges, that were out of step."""
    yield from told_of_steps(Proofs(folder / STEPS_FILE), [w.journal.path for w in work])
    for w in work:
        if w.judgements is not None:
            path = w.judgements.path
            yield from told_of_steps(Proofs(of_judgements(path)), [path], f"the judges of {w.p.task.name}")


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
    told: Callable[[str], None],
    itself: Client | None = None,
) -> None:
    """Has the answers judged that have not been, of tasks that do so: by the endpoint `itself`, else by others."""
    report = folder / run_folder.REPORT_FILE
    for w in work:
        if w.judgements is None or not (pending := w.unjudged(itself=itself is not None)):
            continue
        await ask_judges(
            plan,
            w.p.task.name,
            pending,
            w.judgements.path,
            environ,
            itself=itself,
            progress=progress,
            at_first=lambda: report.unlink(missing_ok=True),
            told=told,
        )
        w.judgements = Judgements(w.judgements.path)


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
    seeds: OrderSeeds,
    progress: Progress | None,
    hung: Hung | None,
    seat: Seat | None,
    told: Callable[[str], None],
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

    proofs = Proofs(folder / STEPS_FILE)
    session = Session(client, order_seed=seeds.samples, at_first=outdate, hung=hung, proofs=proofs, told=told)
    answered = sum(w.tally.scored for w in work)
    planned = sum(len(w.tally.samples) for w in work)
    watch = Watch(answered=answered, planned=planned, max_error_rate=limits.max_error_rate)

    earlier = [load.limits for load in run_folder.loads(folder)]

    def lane(w: Work) -> Lane:
        order: Sequence[int]
        if not w.unfinished:
            order = ()  # it may have answers that turn out to be those to other requests
        elif w.early is None:
            by = task_seed(seeds.samples, w.p.task.name)
            order = arranged(w.tally.samples, w.pending_samples(), limits.order, by)
        else:
            order = array("q", (i for i in w.early.order if w.tally.score(i) is None))
        meet = None if seat is None else partial(seat.meet, w.p.task.name)
        planned = random_order(w, seeds, [limits, *earlier])
        alarm = None if planned is None else Alarm(w.tally, planned, told, w.p.expected)
        return Lane(w.p.task.name, w.tally, w.journal, order, w.early, meet, alarm)

    def once_more(w: Work) -> Lane:
        name = f"{w.p.task.name}, the failed once more"
        again = (i for i in w.tally.worth_another_pass() if i not in w.standing)
        return Lane(name, w.tally, w.journal, array("q", again))

    try:
        lanes = [lane(w) for w in work]
        if seat is not None:
            await seat.take((one.name, i) for one in lanes for i in one.positions)
        await ask(session, lanes, progress=progress, watch=watch)
        if seat is not None:
            await seat.leave()  # what failed is asked again by each when it comes to that
        await ask(session, [once_more(w) for w in work if not w.spared], progress=progress)
        settle_scores(work, folder)
    except BaseException:
        with suppress(ServeEvalError, OSError):  # what ended the run is to be told, not this
            run_folder.note_load(folder, session.load())
        raise
    run_folder.note_load(folder, session.load())


def _session(plan: Plan, endpoint: Endpoint, started_at: datetime) -> dict[str, object]:
    started = started_at.isoformat(timespec="seconds")
    return {"started_at": started, "endpoint": endpoint, "limits": plan.limits, **environment()}
