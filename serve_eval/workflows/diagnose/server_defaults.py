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
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import DEFAULTS, Finding

SAME = (
    "--server-defaults neutral",
    "start the servers with the same generation_config.json (vLLM: --generation-config vllm)",
)


def find_added(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if the server adds fields that change the answers of a task."""
    if task.report is None or task.passes or not (kept := read_kept(task.report)):
        return
    yield Finding(
        rule=DEFAULTS,
        told=(
            f"the server adds {', '.join(kept)} to requests that lack it (generation_config.json?),"
            " which changes answers"
        ),
        change=_list_changes(kept, run),
        count=len(task.asked),
        of=len(task.asked),
        lost=len(task.lost),
        task=task.name,
    )


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
