"""Hold one session of a run: the data that all steps share, with a log of its events."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import serve_eval
from serve_eval.client.connection import SecretMask, hide_in_errors
from serve_eval.errors import JournalError, ServeEvalError
from serve_eval.evaluation.engine.lane import forget_order
from serve_eval.evaluation.engine.load_session import CutOff
from serve_eval.evaluation.results.scoring import ScoringProcesses
from serve_eval.evaluation.task_run import TaskRun, open_scoring
from serve_eval.evidence.engine_counters import Companions, SessionMeter
from serve_eval.frozen import freeze
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import (
    Ability,
    Endpoint,
    FailureKind,
    Isolation,
    Plan,
    Progress,
    Report,
    SamplingDefaults,
)
from serve_eval.storage import run_folder
from serve_eval.storage.answer_origins import Proofs, run_proofs
from serve_eval.storage.journal import FULL_DISK, NO_ROOM_HINT
from serve_eval.storage.order_seed import OrderSeeds
from serve_eval.storage.sessions import RunLog, SessionFile

if TYPE_CHECKING:
    from serve_eval.sandbox import Sandbox


CheckDefaults = Callable[[SamplingDefaults | None], None]
"""Receives what the probe found of an endpoint (None: nothing), and raises to refuse it."""


def allow_any(found: SamplingDefaults | None) -> None:
    """Refuse no sampling defaults."""


@freeze
class SuitePart:
    """The share that a run has in the errors of its suite, or those of a run alone.

    The paired tests of the suite are `tests` at most (0: those of the run). A FAIL of the tasks in
    `waived` ends nothing. `ends`: the suite ends when a FAIL is certain.
    """

    tests: int = 0
    waived: frozenset[str] = frozenset()
    ends: bool = False


@dataclass(slots=True, kw_only=True)
class RunSession:
    """The data that all steps of a run share.

    `plan` judges; `asked_plan` is the plan under which answers are asked. They differ only if a
    folder is judged again. `notify` receives lines about what the session waits for, which the log
    of the folder has too; `log` writes only there. `noted` are the sessions of the folder, and
    `proofs` what was found about connections, each read once. `warnings` go into the report.
    `open_files` closes the files of the tasks and runs callbacks at the end. The first step sets
    `tasks`, `seeds` and `endpoint`, which holds what is known about the source of the answers.
    `hidden_retries` are the counts of its orchestrator at the beginning, by role, and `meter` has
    those of the servers' engines. `companions` are the clients of the same command. `reports`: the
    session ends with a report in the folder. `part_of` is the command whose comparison or check
    asks this run; its `check_defaults` may refuse what the probe found. `settled`: what earlier
    sessions left unproven was withdrawn, so that steps.jsonl names what stands unproven. `cut_off`
    are the samples that were in flight when the session was stopped. `rerun`: answers of earlier
    sessions are asked again, and what they cost counts towards no bound. `part` says what a suite
    shares with the run.
    """

    plan: Plan
    asked_plan: Plan
    prepared: Sequence[PreparedTask]
    folder: Path
    environ: Mapping[str, str]
    progress: Progress | None
    notify: Callable[[str], None]
    log: Callable[[str], None]
    stopwatch: Stopwatch
    scoring: ScoringProcesses
    open_files: ExitStack
    noted: SessionFile
    proofs: Proofs
    warnings: list[str] = field(default_factory=list)
    tasks: list[TaskRun] = field(default_factory=list)
    seeds: OrderSeeds = field(init=False)
    endpoint: Endpoint = field(init=False)
    sandbox: tuple[Sandbox, Isolation] | None = None
    hidden_retries: Mapping[str, int] = field(default_factory=dict)
    meter: SessionMeter | None = None
    companions: Companions = field(default_factory=Companions)
    reports: bool = False
    part_of: str = ""
    check_defaults: CheckDefaults = allow_any
    settled: bool = False
    cut_off: CutOff = field(default_factory=list)
    rerun: bool = False
    part: SuitePart = field(default_factory=SuitePart)

    def count_retries(self) -> int:
        """Return the retries of this session and the earlier ones, as far as they are recorded."""
        return sum(load.retries for load in self.noted.loads())

    def check_journals(self) -> None:
        """Raise JournalError if the folder was removed during the run."""
        if not all(task.journal.path.exists() for task in self.tasks):
            raise JournalError(f"{self.folder} was removed during the run; its answers are lost")


def ignore(line: str) -> None:
    """Discard a notification."""


@contextmanager
def open_session(
    plan: Plan,
    prepared: Sequence[PreparedTask],
    out_dir: Path,
    stopwatch: Stopwatch,
    *,
    asked_plan: Plan | None = None,
    moved: bool = False,
    own: bool = False,
    grows: bool = False,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
    notify: Callable[[str], None] = ignore,
) -> Iterator[RunSession]:
    """Open the folder of a run for a session, with the processes that score its answers.

    `asked_plan` is the plan that the folder is bound to (None: `plan`); `moved`, `own` and `grows`
    are those of `open_folder`. Secrets of `environ` do not show in errors. Raises RunFolderError
    for a folder of something else, and JournalError for file errors of the operating system within
    the block.
    """
    environ = {} if environ is None else environ
    fingerprints = {p.task.name: p.fingerprint for p in prepared}
    with (
        _broken_disk(out_dir),
        hide_in_errors(plan.connection, environ),
        run_folder.open_folder(
            out_dir, asked_plan or plan, fingerprints, moved=moved, own=own, grows=grows
        ) as folder,
        open_scoring(plan, prepared) as scoring,
        ExitStack() as open_files,
    ):
        log = RunLog(folder, SecretMask(plan.connection, environ)).note if own else ignore

        def tell(line: str) -> None:
            log(line)
            notify(line)

        proofs = run_proofs(folder)
        open_files.callback(proofs.close)
        open_files.callback(forget_order)
        yield RunSession(
            plan=plan,
            asked_plan=asked_plan or plan,
            prepared=prepared,
            folder=folder,
            environ=environ,
            progress=LoggedTasks(log, progress) if own else progress,
            notify=tell,
            log=log,
            stopwatch=stopwatch,
            scoring=scoring,
            open_files=open_files,
            noted=SessionFile(folder),
            proofs=proofs,
            reports=own,
        )


@contextmanager
def _broken_disk(out_dir: Path) -> Iterator[None]:
    """Turn any OSError about a file of the run into a JournalError.

    One without a number comes from no system call: a TimeoutError that ends a test, for example.
    """
    try:
        yield
    except OSError as error:
        if error.errno is None:
            raise
        full = error.errno in FULL_DISK
        place = error.filename or out_dir
        raise JournalError(
            f"{place}: {error.strerror or error}", hint=NO_ROOM_HINT if full else ""
        ) from error


class Stopwatch:
    """A stopwatch that starts when it is created."""

    def __init__(self) -> None:
        self.started_at = datetime.now(UTC).isoformat(timespec="seconds")
        self._began = time.monotonic()

    @property
    def wall_s(self) -> float:
        """Seconds since the start, rounded to milliseconds."""
        return round(time.monotonic() - self._began, 3)


FAILURES_EVERY_S = 10.0
"""Shortest time between two lines about the failures of a task."""
Log = Callable[[str], None]


def log_endpoint(
    log: Log, endpoint: Endpoint, found: list[Ability], defaults: SamplingDefaults | None
) -> None:
    """Log what the endpoint is, and the result of each probe."""
    info = endpoint.info
    known = ", ".join(f"{n} {v}" for n, v in (("version", info.version),) if v is not None)
    log(f"endpoint {endpoint.base_url}, model {endpoint.model}{known and f', {known}'}")
    for one in found:
        state = {True: "works", False: "does not work", None: "is not known"}[one.works]
        log(f"probe: {one.need} {state}: {one.seen}")
    if defaults is not None:
        log(
            f"probe: sampling defaults: {defaults.requests} requests, {defaults.tokens} tokens,"
            f" {defaults.wall_s:.2f} s"
        )
        for field in defaults.fields:
            adds = {True: "added", False: "not added", None: "perhaps added"}[field.adds]
            log(f"probe: {field.sent_as} is {field.obedience}, {adds} by the server")


@contextmanager
def log_session(log: Log, plan: Plan, problems: Callable[[], int]) -> Iterator[None]:
    """Log the start of a session, and its end if it is interrupted or fails.

    `problems` counts the retries so far.
    """
    tasks = ", ".join(task.name for task in plan.tasks)
    place = plan.launcher.options.get("base_url", f"launcher {plan.launcher.name}")
    log(f"start: serve-eval {serve_eval.__version__}, {place}, tasks {tasks}")
    try:
        yield
    except asyncio.CancelledError:
        log(f"end: interrupted; {problems()} retries")
        raise
    except ServeEvalError as error:
        log(f"end: {type(error).__name__}: {error}; {problems()} retries")
        raise


def log_report(log: Log, report: Report, retries: int) -> None:
    """Log warnings, failures by cause, verdicts and the end of a session."""
    for task in report.tasks:
        result = task.result
        for line in task.verdict.warnings:
            log(f"warning: {result.task}: {line}")
        causes = ", ".join(f"{count} {kind}" for kind, count in result.failures.items())
        value = "none" if result.value is None else f"{result.value:.3f}"
        log(
            f"{task.verdict.outcome}: {result.task}: value {value}, {result.scored} of"
            f" {result.planned} scored{causes and f', failed: {causes}'}"
        )
    for line in report.warnings:
        log(f"warning: {line}")
    log(f"end: exit code {report.exit_code}, {retries} retries, {report.wall_s:.1f} s")


@dataclass(slots=True)
class LoggedTasks:
    """Progress that is also logged: begin and end of each task, and failures as they come."""

    log: Log
    shown: Progress | None
    clock: Callable[[], float] = time.monotonic
    _failed: dict[str, tuple[str, float]] = field(default_factory=dict)

    def begin(self, task: str, planned: int, completed: int) -> None:
        """Log a task that begins."""
        self.log(f"{task}: {planned} planned, {completed} of them answered before")
        if self.shown is not None:
            self.shown.begin(task, planned, completed)

    def update(
        self, task: str, done: int, failed: Mapping[FailureKind, int], value: float | None
    ) -> None:
        """Log the failures by cause if there are new ones, but not too often."""
        if failed:
            told = ", ".join(f"{count} {kind}" for kind, count in failed.items())
            before, said_s = self._failed.get(task, ("", float("-inf")))
            if told != before and (now_s := self.clock()) - said_s >= FAILURES_EVERY_S:
                self._failed[task] = told, now_s
                self.log(f"{task}: {done} done, failed: {told}")
        if self.shown is not None:
            self.shown.update(task, done, failed, value)

    def end(self, task: str) -> None:
        """Log a task that ends."""
        self.log(f"{task}: asked")
        if self.shown is not None:
            self.shown.end(task)


_WARNING = re.compile(
    r"nothing was asked: .*, the last one (?:since|at) (?P<at>[-\d]+ [:\d]+ UTC);"
)


def warn_of_old_answers(session: RunSession) -> None:
    """Add a warning with the time of the last answer, if the folder has one."""
    if at := find_last_answer([session.folder]):
        session.warnings.append(write_warning(at, "name another folder or give --rerun all"))


def find_last_answer(folders: Iterable[Path]) -> str:
    """Return the time of the last answer in run folders, in UTC; "" if they have none."""
    from serve_eval.storage.folder_results import read_last_answer

    times = [at for folder in folders if (at := read_last_answer(folder)) is not None]
    return f"{datetime.fromtimestamp(max(times), UTC):%Y-%m-%d %H:%M} UTC" if times else ""


def write_warning(at: str, to_ask: str) -> str:
    """Return the warning that all answers are old, the last one of the time `at`.

    `to_ask` says how to ask again. `describe_old_answers` finds the warning.
    """
    return (
        "nothing was asked: every answer was already in the folder, the last one at"
        f" {at}; to ask again, {to_ask}"
    )


def describe_old_answers(warnings: Sequence[str]) -> str:
    """Return that nothing was asked, and the time of the last answer; "" if a session asked."""
    at = find_stated_time(warnings)
    return write_notice(at) if at else ""


def find_stated_time(warnings: Sequence[str]) -> str:
    """Return the time of the last answer in a warning of `write_warning`; "" if there is none."""
    found = next(filter(None, map(_WARNING.match, warnings)), None)
    return "" if found is None else str(found["at"])


def write_notice(at: str) -> str:
    """Return the notice that comes before a result whose last answer is of the time `at`."""
    return f"nothing was asked: the last answer came at {at}"
