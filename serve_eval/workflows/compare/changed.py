"""Judge B's answers to recorded requests, which have no right answers, by A's own differences.

Answers differ by their texts, lengths, endings, tool calls and scores; a score is the form of an
answer, or what a judge says of it. On a sound pair, all answers to a request are drawn alike, so
that any of them could be A's own. One test of all measures together looks if answers of B and of A
are farther apart than two of A (`stats.distances`), and its p is corrected for the measures.

Requests may depend on each other: equal ones and turns of a conversation share their near ties, and
a batch is computed as one. The test is repeated with the labels of each group drawn together, and
with those of answers that came in a row, in A's first run and in its second; the largest p counts.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from serve_eval.evidence import answer_pairs
from serve_eval.evidence.answer_pairs import TaskAnswers
from serve_eval.evidence.answer_texts import part
from serve_eval.evidence.self_flips import MOST_CHARACTERS
from serve_eval.evidence.whole_answer import join_text
from serve_eval.schema import (
    AnswerMeasure,
    ChangedAnswers,
    Parting,
    Response,
    ToolCall,
    Verdict,
    VerdictOutcome,
)
from serve_eval.stats.distances import common_prefix
from serve_eval.stats.finding import MIN_UNITS
from serve_eval.verdicts import validity
from serve_eval.workflows.compare.exact import Second

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

RULE = "answers"
"""Name of the rule of recorded requests in a verdict."""
ALPHA = 0.05
"""Chance that a sound pair is accused, over all tasks of a comparison together."""
IN_BLOCKS, LEAST_BLOCKS = (16, 64), 5
"""Sizes of blocks of consecutive answers that may depend on each other, as in a batch, and the
least number of blocks.
"""
LEAST_FOR_FAIL = 48
"""Least number of requests of a FAIL: fewer may be two batches, each of which flips as one."""
MOST_EXAMPLES = 20
"""Places that are kept at which answers part."""
Name = Literal["text", "length", "ending", "calls", "score"]


class GivenAnswer(NamedTuple):
    """The parts of an answer that are compared.

    `length` is in tokens, or in characters if the server counts none.
    """

    text: str
    whole: int
    length: int
    ending: str
    calls: str
    score: float


Answers = Mapping[str, GivenAnswer]


def compare_answers(
    a: TaskAnswers, b: TaskAnswers, twice: Mapping[str, Second], *, tests: int = 1
) -> ChangedAnswers | None:
    """Return the test of all measures; None if no side answered twice, or none in common.

    `tests` is the number of tasks of the comparison, which share ALPHA.
    """
    sides: list[tuple[Literal["A", "B"], TaskAnswers, Literal["A", "B"], TaskAnswers]] = [
        ("A", a, "B", b),
        ("B", b, "A", a),
    ]
    for name, once, other_name, other in sides:
        if name not in twice:
            continue
        own, others = _read_all(once, twice[name]), _read_all(other, twice.get(other_name))
        if found := _test(name, own, others, _read_groups(a, b), ALPHA / tests):
            return found
    return None


def _read_all(once: TaskAnswers, second: Second | None) -> list[Answers]:
    """Return the answers of a side by run, those of its second run or of its repeats last."""
    found = [_read(once, run) for run in range(len(once.lines))]
    if second is not None and second.answers is not None:
        found.append(_read(second.answers, 0))
    return found


def _read(answers: TaskAnswers, run: int) -> Answers:
    scores = answers.lines[run]
    found: dict[str, GivenAnswer] = {}
    for prompt, response in answer_pairs.read_responses(answers, run):
        if prompt in scores and prompt not in found:
            found[prompt] = _give(response, scores[prompt].value)
    return found


def _give(response: Response, score: float) -> GivenAnswer:
    text = join_text(response)
    return GivenAnswer(
        text=text[:MOST_CHARACTERS],
        whole=hash(text),
        length=response.usage.completion_tokens or len(text),
        ending=response.finish_reason or "",
        calls=_write_calls(response.tool_calls),
        score=score,
    )


def _write_calls(calls: Iterable[ToolCall]) -> str:
    """Return tool calls in a form that spaces and the order of keys do not change."""
    told = []
    for call in calls:
        try:
            arguments = json.dumps(json.loads(call.arguments), sort_keys=True)
        except (ValueError, RecursionError):
            arguments = call.arguments
        told.append(f"{call.name}({arguments})")
    return "\n".join(told)


def _read_groups(a: TaskAnswers, b: TaskAnswers) -> Mapping[str, str]:
    """Return the group of each request: equal ones are one unit of the test."""
    lines = {**b.lines[0], **a.lines[0]}
    return {prompt: line.group or f"id {prompt}" for prompt, line in lines.items()}


def _part(one: GivenAnswer, other: GivenAnswer) -> float:
    """Return 0 for equal texts; others are the farther apart, the sooner they part."""
    if one.whole == other.whole:
        return 0.0
    return 1.0 / (1.0 + common_prefix(one.text, other.text))


DISTANCES: Mapping[Name, Callable[[GivenAnswer, GivenAnswer], float]] = {
    "text": _part,
    "length": lambda one, other: float(abs(one.length - other.length)),
    "ending": lambda one, other: float(one.ending != other.ending),
    "calls": lambda one, other: float(one.calls != other.calls),
    "score": lambda one, other: abs(one.score - other.score),
}


def _test(
    name: Literal["A", "B"],
    own: Sequence[Answers],
    others: Sequence[Answers],
    groups: Mapping[str, str],
    alpha: float,
) -> ChangedAnswers | None:
    import numpy

    from serve_eval.stats.distances import farther_in_each

    runs = [*own, *others]
    prompts = [prompt for prompt in own[0] if all(prompt in run for run in runs)]
    if not prompts or len(own) < 2:
        return None
    said = [[run[prompt] for run in runs] for prompt in prompts]
    measures = {one: _measure(said, distance) for one, distance in DISTANCES.items()}
    varied = [one for one, found in measures.items() if found.any()] or ["text"]
    units = _number([groups.get(prompt, prompt) for prompt in prompts])
    blocks = cut_all([_find_places(run, prompts) for run in own[:2]])
    tested = farther_in_each(
        numpy.stack([_rank(measures[one]) for one in varied]), len(own), [units, *blocks]
    )
    counted = [
        _count(one, measures[one], len(own), p) for one, p in zip(varied, tested.each, strict=True)
    ]
    return ChangedAnswers(
        endpoint=name,
        requests=len(prompts),
        units=len({*units}),
        answers=(len(own), len(others)),
        measures=tuple(counted),
        p=tested.p,
        alpha=alpha,
        examples=_choose(name, prompts, said, len(own)),
    )


def _choose(
    name: str, prompts: Sequence[str], said: Sequence[Sequence[GivenAnswer]], own: int
) -> dict[str, Parting]:
    """Return the places at which answers of A and B part, where the own ones are all equal."""
    found: dict[str, Parting] = {}
    for prompt, answers in zip(prompts, said, strict=True):
        mine, other = answers[0], answers[own]
        if len({one.whole for one in answers[:own]}) > 1 or len(found) == MOST_EXAMPLES:
            continue
        sides = (mine, other) if name == "A" else (other, mine)
        if (parting := part(*(one.text for one in sides))) is not None:
            found[prompt] = parting
    return found


def _measure(
    said: Sequence[Sequence[GivenAnswer]], distance: Callable[[GivenAnswer, GivenAnswer], float]
) -> FloatArray:
    """Return the distances by prompt, answer and answer."""
    import numpy

    count = len(said[0])
    found = numpy.zeros((len(said), count, count))
    for place, answers in enumerate(said):
        for i in range(count):
            for j in range(i + 1, count):
                found[place, i, j] = found[place, j, i] = distance(answers[i], answers[j])
    return found


def _rank(distances: FloatArray) -> FloatArray:
    from serve_eval.stats.distances import rank_distances

    return rank_distances(distances)


def _number(groups: Sequence[str]) -> list[int]:
    numbers: dict[str, int] = defaultdict(lambda: len(numbers))
    return [numbers[group] for group in groups]


def _find_places(run: Answers, prompts: Sequence[str]) -> list[int]:
    """Return the place of each prompt in the order in which a run answered them."""
    wanted = {*prompts}
    places = {name: place for place, name in enumerate(one for one in run if one in wanted)}
    return [places[prompt] for prompt in prompts]


def cut_all(orders: Iterable[Sequence[int]]) -> list[list[int]]:
    """Return the blocks of the answers, by their places in each order and by each size."""
    return [cut_blocks(places, size) for places in orders for size in IN_BLOCKS]


def cut_blocks(places: Sequence[int], size: int) -> list[int]:
    """Return the block of each answer, by its place among all answers of a run."""
    count = max(LEAST_BLOCKS, -(-len(places) // size))
    return [place * count // len(places) for place in places]


def _count(name: Name, distances: FloatArray, own: int, p: float) -> AnswerMeasure:
    """Return how many pairs of answers differ, of one endpoint and across both."""
    prompts, answers = distances.shape[:2]
    differ = distances > 0.0
    mine = int(differ[:, :own, :own].sum()) // 2
    across = int(differ[:, :own, own:].sum())
    return AnswerMeasure(
        name=name,
        own=mine,
        own_pairs=prompts * own * (own - 1) // 2,
        other=across,
        other_pairs=prompts * own * (answers - own),
        p=p,
    )


def judge_answers(a: TaskAnswers, b: TaskAnswers, found: ChangedAnswers | None) -> Verdict:
    """Return the verdict of recorded requests: FAIL if B differs more than A from itself.

    INCONCLUSIVE: no side was asked twice, or too few requests were compared or have all answers.
    """
    lacking = [
        had.task.verdict for had in (a, b) if had.task.verdict.outcome is VerdictOutcome.UNSUPPORTED
    ]
    if lacking:
        return replace(lacking[0], rule=RULE)
    before, after = a.task.result, b.task.result
    base = Verdict(
        task=after.task,
        outcome=VerdictOutcome.PASS,
        rule=RULE,
        evaluated=after.value,
        bounds=after.bounds,
        reference=before.value,
        alpha=ALPHA if found is None else found.alpha,
        num_samples=b.planned,
    )
    outcome, reason = _decide(a, b, found)
    return replace(base, outcome=outcome, reasons=(reason,) if reason else ())


def _decide(
    a: TaskAnswers, b: TaskAnswers, found: ChangedAnswers | None
) -> tuple[VerdictOutcome, str]:
    if found is not None and found.more:
        told = describe_changed(found)
        if found.requests < LEAST_FOR_FAIL:
            need = f"a FAIL needs at least {LEAST_FOR_FAIL} requests"
            return VerdictOutcome.INCONCLUSIVE, f"few_requests: {told}; {need}"
        return VerdictOutcome.FAIL, f"answers_differ: {told}"
    if a.task.result.value is None or b.task.result.value is None:
        side = "A" if a.task.result.value is None else "B"
        return VerdictOutcome.ERROR, f"nothing_scored: no answer of {side} could be scored"
    if found is None:
        return VerdictOutcome.INCONCLUSIVE, (
            "own_unknown: no side answered the requests twice, so its own differences are not known"
        )
    planned = max(a.planned, b.planned)
    both = len(a.lines[0].keys() & b.lines[0].keys())
    if found.units < MIN_UNITS:
        return VerdictOutcome.INCONCLUSIVE, (
            f"too_few_answers: {found.units} different requests were compared; a verdict needs"
            f" {MIN_UNITS}"
        )
    if planned - both > validity.MAX_MISSING * planned:
        return VerdictOutcome.INCONCLUSIVE, (
            f"too_many_missing: {planned - both} of {planned} requests have no answer on a side; at"
            f" most {validity.MAX_MISSING:.0%} may be"
        )
    return VerdictOutcome.PASS, ""


_NAMES: Mapping[str, str] = {
    "text": "texts",
    "length": "lengths",
    "ending": "finish reasons",
    "calls": "tool calls",
    "score": "scores",
}


def describe_changed(found: ChangedAnswers) -> str:
    """Return how often answers differ across both endpoints and within one, by each measure."""
    own, other = found.endpoint, "B" if found.endpoint == "A" else "A"
    more = "more" if found.more else "no more"
    counts = ", ".join(
        f"{_NAMES[one.name]} {one.other / one.other_pairs:.1%} against"
        f" {one.own / one.own_pairs:.1%}"
        for one in found.measures
    )
    many = f", for {len(found.measures)} measures" if len(found.measures) > 1 else ""
    return (
        f"{other} differs from {own} {more} than {own} from itself in {found.requests} requests:"
        f" {counts} (p {found.p:.2g}{many})"
    )
