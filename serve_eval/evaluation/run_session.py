"""Hold one session of a run: the data shared by all steps while the run folder is open."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.client.connection import SecretMask, hide_in_errors
from serve_eval.errors import JournalError
from serve_eval.evaluation.engine.lane import forget_order
from serve_eval.evaluation.engine.load_session import CutOff
from serve_eval.evaluation.results.scoring import ScoringProcesses
from serve_eval.evaluation.session_log import LoggedTasks, Stopwatch
from serve_eval.evaluation.task_run import TaskRun, open_scoring
from serve_eval.evidence.engine_counters import Companions, SessionMeter
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Endpoint, Isolation, Plan, Progress, SamplingDefaults
from serve_eval.storage import run_folder
from serve_eval.storage.journal import FULL_DISK, NO_ROOM_HINT
from serve_eval.storage.order_seed import OrderSeeds
from serve_eval.storage.records.answer_origins import Proofs, run_proofs
from serve_eval.storage.sessions import RunLog, SessionFile

if TYPE_CHECKING:
    from serve_eval.sandbox.sandbox import Sandbox


CheckDefaults = Callable[[SamplingDefaults | None], None]
"""Receives what the probe found of an endpoint (None: nothing), and raises to refuse it."""


def allow_any(found: SamplingDefaults | None) -> None:
    """Refuse no sampling defaults."""


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
    are the samples that were in flight when the session was stopped.
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
