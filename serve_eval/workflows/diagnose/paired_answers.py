"""The answers of both sides of a comparison, prompt by prompt."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from serve_eval.schema import ComparedTask, Comparison, Response
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.breakdown import describe_verify, name_good
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import BETWEEN_SHARE, Finding, ids
from serve_eval.workflows.diagnose.worse_side import find_worse


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparedAnswers:
    """The answers of both sides to the same prompts of a task, which are texts.

    `pairs` has the first answers to each prompt, and `every` those of all repeats. `compared` is
    the result of the comparison, or None if it did not finish. `share` is the share of the levels
    that the rules may spend on this task. `worse` is 0 or 1 for the side that lost more, None if
    neither clearly. `next` are commands that look into A and into B, and `legs` say if a side has
    context and generation servers.
    """

    a: TaskEvidence
    b: TaskEvidence
    pairs: tuple[tuple[AskedSample, AskedSample], ...]
    every: tuple[tuple[AskedSample, AskedSample], ...]
    compared: ComparedTask | None
    share: float = 1.0
    worse: int | None = None
    next: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    legs: tuple[bool, bool] = (False, False)

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
        there = {one.id: one for one in other.texts}
        every = tuple((one, there[one.id]) for one in task.texts if one.id in there)
        first = {one.id for one in task.witnesses([one for one, _ in every])}
        pairs = tuple((one, other) for one, other in every if one.id in first)
        if pairs:
            yield ComparedAnswers(
                a=task,
                b=other,
                pairs=pairs,
                every=every,
                compared=results.get(task.name),
                share=BETWEEN_SHARE / len(a.tasks),
                worse=find_worse(task, other),
                next=(_list_next(a, (a, b)), _list_next(b, (a, b))),
                legs=(a.has_legs, b.has_legs),
            )


def _list_next(side: Evidence, both: tuple[Evidence, Evidence]) -> tuple[str, ...]:
    """Return the commands that look into a side: at its servers first, if they are known."""
    verify = describe_verify(both[1], name_good(both[0]))
    return (side.attribute, verify) if side.has_legs else (verify,)


def make_finding(
    both: ComparedAnswers,
    rule: str,
    told: str,
    change: tuple[str, ...],
    shown: Sequence[AskedSample],
    p: float | None,
    rather: str = "",
    *,
    of: int | None = None,
    count: int | None = None,
    explains: int | None = None,
    leads: bool = True,
    of_every: bool = False,
) -> Finding:
    """Return a finding about both sides of a task.

    It says that it is about first answers if there are more, unless it is about all (`of_every`).
    """
    first = "" if of_every or len(both.every) == len(both.pairs) else "of the first answers: "
    return Finding(
        rule=rule,
        told=f"{first}{told}",
        change=change,
        count=len(shown) if count is None else count,
        of=len(both.pairs) if of is None else of,
        explains=explains,
        lost=0 if explains is None else sum(other.lost for _, other in both.pairs),
        task=both.name,
        samples=ids(shown),
        p=p,
        rather=rather,
        leads=leads,
    )
