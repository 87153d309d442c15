"""Rules about sampling fields that a server adds to requests, such as repetition_penalty."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.evaluation.capabilities.sampling import (
    list_different_kept,
    name_difference,
    read_kept,
)
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import DEFAULTS, Finding
from serve_eval.workflows.diagnose.paired_answers import ComparedAnswers, make_finding

LOWER_NATS = 0.001
"""Nats by which a token must be less likely than another to be no tie that was rounded."""
LEAST = 2
"""Examined flips in which a side must write a token that it ranks lower."""
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
        change=SAME,
        count=len(task.asked),
        of=len(task.asked),
        lost=len(task.lost),
        task=task.name,
    )


def find_unlike_defaults(a: Evidence, b: Evidence) -> Iterator[Finding]:
    """Yield a finding per task if the servers of both sides add unlike fields to its requests."""
    if a.report is None or b.report is None or not list_different_kept(a.report, b.report):
        return
    told = name_difference(a.report.sampling_defaults, b.report.sampling_defaults)
    for task in b.tasks:
        yield Finding(
            rule=DEFAULTS,
            told=told,
            change=SAME,
            count=len(task.asked),
            of=len(task.asked),
            lost=len(task.lost),
            task=task.name,
        )


def find_lower_ranked(both: ComparedAnswers) -> Iterator[Finding]:
    """Yield a finding if one side, asked greedily, writes tokens that it ranks lower.

    Reported log-probabilities are those before penalties. A token that is less likely than another
    one of the same list was therefore not chosen by weights, cache or prompt.
    """
    if both.compared is None or both.b.option("temperature") != 0:
        return
    gaps = [
        flip.divergence.gaps
        for flip in both.compared.flips
        if flip.divergence is not None and flip.divergence.gaps is not None
    ]
    for side in (0, 1):
        count = sum(gap[side] < -LOWER_NATS for gap in gaps)
        if count < LEAST:
            continue
        yield make_finding(
            both,
            DEFAULTS,
            f"{'AB'[side]} writes a token that it lists as less likely than {'AB'[1 - side]}'s in"
            f" {count} of {len(gaps)} examined flips: a penalty or a bias that the server adds, not"
            " its weights, cache or prompt",
            SAME,
            [],
            None,
            of=len(gaps),
            count=count,
        )
