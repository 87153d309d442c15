"""Place the tasks that an error kept out of a report in a table of deployments by tasks. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from serve_eval.report.results_table import ResultCell, TaskColumn
from serve_eval.report.results_table.cell import name_outcome
from serve_eval.schema import SuiteRow, TaskReport, VerdictOutcome
from serve_eval.series.asked_alike import Key
from serve_eval.series.deployments import SEED
from serve_eval.series.measured_runs import MeasuredRun
from serve_eval.series.planned_tasks import PlannedTask

LAUNCH_ERROR = "LaunchError"
"""The name of the error of a server that did not start, or that ended."""
_SHORT = 40
"""Characters of options that the heading of a column shows."""


def list_lost(run: MeasuredRun) -> Iterator[tuple[PlannedTask, SuiteRow]]:
    """Yield the tasks of a run that its report lacks, each with its row in the suite."""
    had = [] if run.report is None else [task.result.task for task in run.report.tasks]
    for name, row in run.judged.items():
        lost = run.report is None or row.outcome is VerdictOutcome.ERROR
        if name not in had and name in run.planned and lost:
            yield run.planned[name], row


def find_column(planned: PlannedTask, columns: Mapping[Key, TaskReport]) -> Key:
    """Return the column of the runs that asked a task as it was planned, or a new one.

    The fingerprint decides if it is known, else the options of the task.
    """
    name, known = planned.spec.name, planned.fingerprint
    for key, task in columns.items():
        if known is None:
            alike = dict(task.spec.options) == dict(planned.spec.options)
        else:
            alike = _without_seed(task.fingerprint) == _without_seed(known)
        if task.spec.name == name and alike:
            return key
    asked = planned.spec.options if known is None else _without_seed(known)
    return name, f"planned {msgspec.json.encode(asked, order='sorted').decode()}"


def _without_seed(fingerprint: Mapping[str, str]) -> dict[str, str]:
    """Return a fingerprint without the sampling seed, which tells repeats apart."""
    return {name: value for name, value in fingerprint.items() if name != SEED}


def make_column(planned: PlannedTask, headings: Sequence[str]) -> TaskColumn:
    """Return a column that no report has; `headings` are those of the others."""
    name = planned.spec.name
    options = ", ".join(f"{key} {value}" for key, value in planned.spec.options.items())
    longer = f"{name} ({options[:_SHORT] or 'planned'})"
    return TaskColumn(
        task=name,
        heading=longer if any(one.startswith(name) for one in headings) else name,
        metric=planned.metric,
        planned=planned.prompts,
        repeats=(planned.repeats,),
    )


def make_lost_cell(planned: PlannedTask, row: SuiteRow, run: MeasuredRun) -> ResultCell:
    """Return the cell of a task without a result."""
    reason = "; ".join(dict.fromkeys(row.reasons))
    return ResultCell(
        value=None,
        interval=None,
        outcome=row.outcome,
        scored=0,
        planned=planned.samples,
        waived=row.waiver is not None,
        run=str(run.folder),
        seed=planned.seed,
        whole=False,
        reason=reason,
        brief=_say_ending(run),
        answers=run.answers,
        no_difference=name_outcome(row.outcome, reason),
        in_suite=True,
    )


def _say_ending(run: MeasuredRun) -> str:
    """Return how the server of a run failed, without what it wrote; "" for another error."""
    if run.error != LAUNCH_ERROR:
        return ""
    if run.answers:
        return f"the server ended after {run.answers}"
    return "the server did not start"
