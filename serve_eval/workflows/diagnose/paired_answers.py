"""Pair the answers of both sides of a comparison, and find the worse side."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from serve_eval.frozen import freeze
from serve_eval.schema import ComparedTask, Comparison, Response
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.workflows.diagnose.breakdown import describe_verify, name_good
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, base_of
from serve_eval.workflows.diagnose.finding import BETWEEN_SHARE, AskedSample, Finding, ids


@freeze
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
        rule,
        f"{first}{told}",
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


LEVEL = 0.05
"""Largest p at which one side is called worse."""
OF_ANSWERS = frozenset(
    (
        *("truncated", "unclosed_reasoning", "stopped_in_reasoning", "stop_string", "empty"),
        *("misfiled", "looping", "template_marks", "end_tokens", "run_on", "unreadable"),
        *("extraction", "extractors", "worker", "slow_worker", "drift", "concurrency"),
    )
)
"""Rules that explain the answers of a side, or accuse its servers."""


def find_worse(a: TaskEvidence, b: TaskEvidence) -> int | None:
    """Return 0 if A has more wrong or missing answers than B, 1 if B has, or None.

    p is that of McNemar's exact test over the prompts of both sides: of several answers to a
    prompt, the side counts that lost more of them.
    """
    there = {one.id: one.lost for one in b.asked}
    both = [one for one in a.asked if one.id in there]
    more = sum_by_prompt((a, one.id, one.lost - there[one.id]) for one in both)
    only = [sum(change > 0 for change in more), sum(change < 0 for change in more)]
    side = 0 if only[0] > only[1] else 1
    return side if mcnemar(only[side], only[1 - side]).p_exact_two_sided <= LEVEL else None


def sum_by_prompt(changes: Iterable[tuple[TaskEvidence, str, int]]) -> list[int]:
    """Return the sum of the changes of each prompt, given those of its answers by id."""
    sums: dict[str, int] = defaultdict(int)
    for task, sample, change in changes:
        sums[base_of(sample) if task.repeats > 1 else sample] += change
    return list(sums.values())


def drop_sound(
    findings: tuple[Sequence[Finding], Sequence[Finding]], sides: tuple[Evidence, Evidence]
) -> list[tuple[Finding, ...]]:
    """Return the findings about A and about B, without those about answers of a sound side.

    A finding that the worse side has too is about both.
    """
    there = {task.name: task for task in sides[1].tasks}
    worse = {
        task.name: find_worse(task, there[task.name])
        for task in sides[0].tasks
        if task.name in there
    }
    kinds = [{(one.rule, one.task) for one in own} for own in findings]
    return [
        tuple(
            one
            for one in own
            if one.task is None
            or worse.get(one.task) != 1 - side
            or one.rule not in OF_ANSWERS
            or (one.rule, one.task) in kinds[1 - side]
        )
        for side, own in enumerate(findings)
    ]
