"""Open the tasks of a session, to complete their answers with programs and judges."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.client.client import Client
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.earlier_run import Rerun, set_aside
from serve_eval.evaluation.judges import JudgeSession, ask_judges, check_judges
from serve_eval.evaluation.launch import last_endpoint
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.task_run import TaskRun, replay, take
from serve_eval.evidence.attribution.trace import note_earlier_servers
from serve_eval.plan.chosen_samples import seed_of_group
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Isolation, Judge
from serve_eval.storage import order_seed, run_folder
from serve_eval.storage.answer_origins import (
    Proofs,
    judges_proofs,
    withdraw_all,
    withdraw_unsettled,
)
from serve_eval.storage.assessments import Executions, Judgements, judges_of, permit
from serve_eval.storage.file_names import executions_file, judgements_file, samples_file
from serve_eval.storage.journal import Journal
from serve_eval.storage.report_file import drop_report
from serve_eval.storage.scores import ScoreFile, write_scores

if TYPE_CHECKING:
    from serve_eval.sandbox import Sandbox


async def open_tasks(session: RunSession, rerun: Rerun, seed: int | None) -> None:
    """Open the tasks with the answers that remain valid, and settle the order of the rest.

    `seed` is that of the order of a run without answers (None: the plan's, else drawn). Raises
    SandboxError and EndpointError if a sandbox or a judge that will be needed is not available,
    before anything is asked.
    """
    plan, folder = session.plan, session.folder
    set_aside(folder, plan, session.prepared, rerun)
    await _open_to_ask(session, rerun)
    await note_earlier_servers({w.prepared.task.name: w.journal for w in session.tasks}, folder)
    session.endpoint = last_endpoint(plan, session.noted.read())
    session.sandbox = await find_sandbox(session)
    await check_judges(plan, list_pending_judges(session.tasks), session.environ)
    session.seeds = order_seed.settle_seeds(
        folder, plan, seed_of_group(plan, session.environ) if seed is None else seed
    )
    if seed is None and (line := order_seed.not_followed(plan, session.seeds.samples)) is not None:
        session.warnings.append(line)
    stop_early(session, asking=True)


async def open_again(session: RunSession, rerun: Rerun, *, server: str | None) -> None:
    """Open the tasks again, once the version of `server` is known and decides what to repeat."""
    session.open_files.close()
    set_aside(session.folder, session.plan, session.prepared, rerun, server=server)
    await _open_to_ask(session, rerun)
    session.sandbox = session.sandbox or await find_sandbox(session)
    stop_early(session, asking=True)


async def _open_to_ask(session: RunSession, rerun: Rerun) -> None:
    """Open the tasks, in a thread if other processes score their answers."""
    session.tasks = await session.scoring.wait_for(_replay_to_ask, session, rerun == "never")


def refuse_identical(folder: Path) -> None:
    """Raise RunFolderError if tasks of a run passed by identity: there is nothing to judge."""
    if names := run_folder.list_identical(folder):
        raise RunFolderError(
            f"{folder}: {', '.join(names)} passed by identity, and nothing was asked: there are no"
            " answers and no value",
            hint="Ask them: resume the run with --no-accept-identical.",
        )


def _replay_to_ask(session: RunSession, stand: bool) -> list[TaskRun]:
    """Open the tasks of a session that asks.

    With `stand`, failures of earlier sessions stand, and an answer without a score or a proof is
    not asked again.
    """
    tasks = replay_tasks(session, failures_stand=stand, asking=not stand)
    session.settled = not stand
    for w in tasks:
        w.standing = frozenset(
            i for i in w.accumulator.list_unanswered() if w.accumulator.score(i) is not None
        )
        w.failures_stand = stand
    if session.plan.accept_identical and not session.rerun:
        _take_identity(session, tasks)
    return tasks


def _take_identity(session: RunSession, tasks: Iterable[TaskRun]) -> None:
    """Give the tasks what an earlier session found by probes; answers take precedence over it."""
    found = run_folder.read_identity(session.folder)
    for w in tasks:
        known = found.get(w.prepared.task.name)
        if known is not None and (w.journal.empty or not known.accepted):
            w.identity = known


def replay_tasks(
    session: RunSession, *, failures_stand: bool, asking: bool = False
) -> list[TaskRun]:
    """Open every task with the answers of its journal, scored again.

    `asking`: answers without a proof are withdrawn, since they can be asked again.
    """
    return [
        _open_task(session, p, failures_stand=failures_stand, asking=asking)
        for p in session.prepared
    ]


def _open_task(
    session: RunSession, prepared: PreparedTask, *, failures_stand: bool, asking: bool
) -> TaskRun:
    """Open the journal of a task, and score its answers again."""
    folder = session.folder
    journal = session.open_files.enter_context(Journal(samples_file(folder, prepared.task.name)))
    if journal.dropped_bytes:
        torn = f"a torn last record of {journal.dropped_bytes} bytes was dropped"
        session.warnings.append(f"{prepared.task.name}: {torn}; its sample will be asked again")
    ran, judged = (
        executions_file(folder, prepared.task.name),
        judgements_file(folder, prepared.task.name),
    )
    executions = Executions(ran, keep=True) if prepared.task.program is not None else None
    take_back = withdraw_unsettled if asking else withdraw_all
    if gone := take_back(journal, session.proofs):
        session.notify(_say_withdrawn(prepared.task.name, gone))
    judgements = open_judgements(judged, take_back) if prepared.task.questions is not None else None
    at_once = executions is None and judgements is None
    scores, times = (
        _scores(session, prepared) if at_once else None,
        session.plan.times(prepared.task.name),
    )
    accumulator = ScoreAccumulator(
        prepared.task,
        prepared.dataset.samples,
        scores,
        repeats=times,
        apart=session.scoring.of(prepared.task.name),
        known_finishes=session.plan.limits.known_finish_reasons,
    )
    replay(journal, accumulator, failures_stand=failures_stand)
    if scores is not None:
        _put_in_place(session, scores)
    return TaskRun(prepared, journal, accumulator, executions, judgements, scores=scores)


def _say_withdrawn(task: str, count: int) -> str:
    answers = "1 answer of an earlier session is" if count == 1 else f"{count} answers are"
    return (
        f"{task}: {answers} withdrawn, since nothing proves that their connections returned each"
        " answer to its own request"
    )


def open_judgements(
    path: Path, take_back: Callable[[Journal, Proofs], int] = withdraw_all
) -> Judgements:
    """Return the judgements, without those that `take_back` withdraws."""
    if path.exists():
        with Journal(path) as journal:
            take_back(journal, judges_proofs(path))
    return Judgements(path)


def stop_early(session: RunSession, *, asking: bool) -> None:
    """Set up early stopping for the tasks that allow it.

    Their order is drawn for the run and kept when it resumes. With `asking`, the tasks that paired
    rules examine are noted in the folder.
    """
    plan, seed = session.plan, session.seeds.samples
    if plan.early_stop is None or plan.integration_test:
        return
    # Needs scipy, which a run loads while it waits for its first answers.
    from serve_eval.evaluation.early_stop import looks_at_pairs, watch

    before = run_folder.read_looks(session.folder)
    # Together, the tests of all tasks, or of a whole suite, have the alpha of one.
    own = sum(looks_at_pairs(w.prepared.rule) for w in session.tasks)
    for w in session.tasks:
        if plan.shard is not None:
            w.note = (
                "no early stop: a shard cannot know the verdict of all shards, and asks all of its"
                " samples"
            )
            continue
        if w.executions is not None or w.judgements is not None:
            how = "run" if w.judgements is None else "judged"
            w.note = f"no early stop: answers are {how} and scored only after the last one arrived"
            continue
        if w.prepared.task.name in before and looks_at_pairs(w.prepared.rule):
            then = before[w.prepared.task.name].partition(OF_REPEATS)[2] or "1"
            if int(then) != w.accumulator.repeats:
                w.note = (
                    "no early stop: an earlier session looked at"
                    f" {then} answers per prompt, which used the alpha of the looks"
                )
                continue
        shared = _read_tests(before.get(w.prepared.task.name, "")) or session.part.tests
        w.early, w.note = watch(
            w.prepared, w.accumulator, eps=plan.early_stop, seed=seed, tests=max(own, shared)
        )
        if w.early is not None:
            w.early.look()
    looked_at = {
        w.prepared.task.name: before.get(w.prepared.task.name) or _name_looks(w, session.part.tests)
        for w in session.tasks
        if w.early is not None and looks_at_pairs(w.prepared.rule)
    }
    if asking and looked_at:
        run_folder.note_looks(session.folder, looked_at)


OF_REPEATS = " of repeats: "
"""Separates the rule that looked at a task from the number of repeats, in the record of looks."""


OF_TESTS = " of tests: "
"""Separates the rule that looked at a task from the tests of the suite that share its alpha."""


def _read_tests(looks: str) -> int:
    """Return how many tests shared the alpha of the first looks at a task; 0: those of its run."""
    return int(looks.partition(OF_REPEATS)[0].partition(OF_TESTS)[2] or 0)


def _name_looks(task_run: TaskRun, tests: int) -> str:
    """Return the rule that looks at a task, with the tests of its suite and with its repeats."""
    rule, repeats = task_run.prepared.rule.name, task_run.accumulator.repeats
    rule += f"{OF_TESTS}{tests}" if tests else ""
    return rule if repeats == 1 else f"{rule}{OF_REPEATS}{repeats}"


def score_again(session: RunSession) -> None:
    """Score the answers that were only counted on arrival, with all that is known about them."""
    for w in session.tasks:
        if w.executions is None and w.judgements is None:
            continue
        scores = _scores(session, w.prepared)
        w.accumulator = ScoreAccumulator(
            w.prepared.task,
            w.prepared.dataset.samples,
            scores,
            repeats=session.plan.times(w.prepared.task.name),
            executions=w.executions,
            judgements=w.judgements,
            apart=session.scoring.of(w.prepared.task.name),
            known_finishes=session.plan.limits.known_finish_reasons,
        )
        take(w.journal.records(), w.accumulator, failures_stand=True)
        _put_in_place(session, scores)


def settle_scores(tasks: Iterable[TaskRun]) -> None:
    """Remove the scores of withdrawn answers from the files."""
    for w in tasks:
        if w.scores is not None and w.accumulator.forgot:
            w.scores.settle(w.accumulator.list_scored_ids())


def _put_in_place(session: RunSession, scores: ScoreFile) -> None:
    """Replace the scores of earlier sessions by those that were computed again, all at once.

    A session that writes a report removes one that other scores gave. Otherwise a kill would leave
    scores with a report that does not belong to them.
    """
    if session.reports and not scores.equals_old():
        drop_report(session.folder)
    scores.replace_old()


def _scores(session: RunSession, prepared: PreparedTask) -> ScoreFile:
    return session.open_files.enter_context(write_scores(session.folder, prepared.task.name))


async def find_sandbox(session: RunSession) -> tuple[Sandbox, Isolation] | None:
    """Return where answers will run, or None if none will.

    Raises SandboxError before anything is asked in vain.
    """
    names = [
        w.prepared.task.name
        for w in session.tasks
        if w.executions is not None and (w.unfinished or w.list_pending_programs())
    ]
    if not names:
        return None
    sandbox, isolation = await permit(names, allowed=session.plan.allow_code_execution)
    session.notify(
        f"{', '.join(names)}: code written by the model runs here, with {isolation.name} as user"
        f" {isolation.uid}"
    )
    return sandbox, isolation


async def run_answers(session: RunSession) -> None:
    """Run the answers that have not been run, in tasks that need it."""
    allowed = session.plan.allow_code_execution
    for w in session.tasks:
        if w.executions is not None and (programs := w.list_pending_programs()):
            session.sandbox = session.sandbox or await permit(
                [w.prepared.task.name], allowed=allowed
            )
            await w.executions.run(
                w.prepared.task.name, programs, *session.sandbox, session.progress
            )


def list_pending_judges(tasks: Iterable[TaskRun]) -> list[Judge]:
    """Return the judges that will be asked, each once.

    Raises PlanError for two judges of a task with the same name.
    """
    found: list[Judge] = []
    for w in tasks:
        if w.judgements is not None and (w.unfinished or w.list_unjudged(itself=False)):
            judges = judges_of(w.prepared.task, w.prepared.dataset.samples)
            found += [judge for judge, _ in judges if judge not in found]
    return found


async def judge_answers(session: RunSession, itself: Client | None = None) -> None:
    """Have the unjudged answers judged, in tasks that need it.

    If `itself` is given, the endpoint judges its own answers; otherwise the other judges do.
    """
    judging = JudgeSession(
        plan=session.plan,
        environ=session.environ,
        notify=session.notify,
        itself=itself,
        progress=session.progress,
        at_first=partial(drop_report, session.folder),
    )
    for w in session.tasks:
        if w.judgements is None or not (pending := w.list_unjudged(itself=itself is not None)):
            continue
        await ask_judges(judging, w.prepared.task.name, pending, w.judgements.path)
        w.judgements = Judgements(w.judgements.path)
