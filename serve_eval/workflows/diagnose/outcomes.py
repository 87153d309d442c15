"""The outcomes in a folder that is diagnosed, before their causes are known."""

from __future__ import annotations

from dataclasses import dataclass

from serve_eval.report.one_line import OneLine
from serve_eval.report.summary.summary_task import SummaryTask

ENDED_EARLY, STOPPED = "ERROR", "INTERRUPTED"
"""The outcomes of a command without a result: an error, or a signal, ended it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOutcome:
    """A task of a run or of a comparison, a run that never started, or a server, with its outcome.

    `run` is the label of the run in the diagnosis whose findings are about it. `summary` and
    `line` are those of its verdict; without one, `why` and `fix` say how it ended. `left_open`:
    missing answers leave its verdict open, or turn it into an error.
    """

    name: str
    outcome: str
    run: str | None = None
    task: str = ""
    summary: SummaryTask | None = None
    line: OneLine | None = None
    why: str = ""
    fix: str = ""
    left_open: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderOutcomes:
    """The outcomes in a folder, with what is known of all of them.

    `again` says in words how to go on, `commands` come next, and `page` is the page of the result
    next to that of the diagnosis ("": there is none).
    """

    judged: tuple[FolderOutcome, ...]
    outcome: str = ""
    counted_as: str = ""
    noun: str = "tasks"
    model: str | None = None
    endpoint: str = ""
    started_at: str = ""
    rehearsal: bool = False
    again: str = ""
    commands: tuple[str, ...] = ()
    page: str = ""
