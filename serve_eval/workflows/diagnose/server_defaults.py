"""Rules about sampling fields that a server adds to requests, such as repetition_penalty."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from serve_eval.evaluation.capabilities.sampling import (
    NEUTRAL,
    advise,
    list_different_kept,
    name_difference,
    read_kept,
)
from serve_eval.schema import TaskReport
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import DEFAULTS, Finding

SAME = (
    "--set server_defaults=neutral",
    "start the servers with the same generation_config.json (vLLM: --generation-config vllm)",
)

_BY_REFERENCE = "the reference's servers added the same, by name: it records no values"


def find_added(run: Evidence, other: Evidence | None = None, name: str = "") -> Iterator[Finding]:
    """Yield a finding per task if the server adds fields that change its answers.

    Fields that the servers of the reference added too, or those of the `other` side of a
    comparison, which has that `name`, explain no difference from them.
    """
    for task in run.tasks:
        if task.report is None or task.passes or not (kept := read_kept(task.report)):
            continue
        if other is None:
            same, there = _list_of_reference(task.report), _BY_REFERENCE
        else:
            same = _list_of_side(task, run, other)
            there = f"the server of {name} adds the same"
        new = [one for one in kept if one not in same]
        told = (
            f"the server adds {', '.join(new or kept)} to requests that lack it"
            " (generation_config.json?), "
        )
        yield Finding(
            rule=DEFAULTS,
            told=f"{told}which changes answers" if new else f"{told}and {there}",
            change=_list_changes(new, run) if new else (),
            count=len(task.asked),
            of=len(task.asked),
            explains=None if new else 0,
            lost=len(task.lost),
            task=task.name,
            leads=bool(new),
        )


def _list_of_reference(report: TaskReport) -> Collection[str]:
    """Return the fields that the servers of a reference added, as far as it records them."""
    runs = None if report.reference is None else report.reference.runs
    return () if runs is None else runs.server_adds or ()


def _list_of_side(task: TaskEvidence, run: Evidence, other: Evidence) -> Collection[str]:
    """Return the fields that the other side adds to the same task, with no other value known."""
    if run.report is None or other.report is None:
        return ()
    differ = list_different_kept(run.report, other.report)
    there = [one for one in other.report.tasks if one.result.task == task.name]
    return [field for one in there for field in read_kept(one) if field not in differ]


def _list_changes(names: Collection[str], *runs: Evidence) -> tuple[str, ...]:
    """Return how to ask without the servers' fields, and how to start servers without them."""
    reports = [run.report for run in runs if run.report is not None]
    ways = advise(names, *(report.sampling_defaults for report in reports))
    return (*(one.replace(NEUTRAL, SAME[0]) for one in ways), SAME[1])


def find_unlike_defaults(a: Evidence, b: Evidence) -> Iterator[Finding]:
    """Yield a finding per task if the servers of both sides add unlike fields to its requests."""
    if a.report is None or b.report is None:
        return
    if not (kept := list_different_kept(a.report, b.report)):
        return
    told = name_difference(a.report.sampling_defaults, b.report.sampling_defaults)
    for task in b.tasks:
        yield Finding(
            rule=DEFAULTS,
            told=told,
            change=_list_changes(kept, a, b),
            count=len(task.asked),
            of=len(task.asked),
            lost=len(task.lost),
            task=task.name,
        )
