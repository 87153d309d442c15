"""The answers of both sides of a comparison, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from serve_eval.schema import ComparedTask, Comparison, Response
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import BETWEEN_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAnswers:
    """The answers of both sides to the same prompts of a task, which are texts.

    `compared` is the result of the comparison, or None if it did not finish. `share` is the share
    of the levels that the rules may spend on this task.
    """

    a: TaskEvidence
    b: TaskEvidence
    pairs: tuple[tuple[AskedSample, AskedSample], ...]
    compared: ComparedTask | None
    share: float = 1.0

    @property
    def name(self) -> str:
        return self.a.name

    @property
    def responses(self) -> list[tuple[Response, Response]]:
        return [
            (one.response, other.response)
            for one, other in self.pairs
            if one.response is not None and other.response is not None
        ]


def pair_answers(
    a: Evidence, b: Evidence, comparison: Comparison | None
) -> Iterator[ComparedAnswers]:
    """Yield the tasks that both sides answered."""
    results = {} if comparison is None else {one.task: one for one in comparison.tasks}
    others = {task.name: task for task in b.tasks}
    for task in a.tasks:
        if (other := others.get(task.name)) is None:
            continue
        there = {one.id: one for one in other.witnesses(other.texts)}
        pairs = tuple((one, there[one.id]) for one in task.witnesses(task.texts) if one.id in there)
        if pairs:
            yield ComparedAnswers(
                a=task,
                b=other,
                pairs=pairs,
                compared=results.get(task.name),
                share=BETWEEN_SHARE / len(a.tasks),
            )
