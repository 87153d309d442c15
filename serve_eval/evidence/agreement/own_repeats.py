"""Test if two endpoints differ more than the repeats of one of them differ, by all answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

from serve_eval.evidence.agreement import answer_pairs
from serve_eval.evidence.agreement.all_answers import agree_in_all, pair_own
from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.evidence.agreement.self_flips import FLIP_ALPHA
from serve_eval.evidence.whole_answer import join_text
from serve_eval.schema import SelfFlips
from serve_eval.stats.common_prefix import common_prefix

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

T = TypeVar("T")
MOST_CHARACTERS = 4000
"""Characters of a text that tell where it parts from another one; all of them tell if it does."""
Spoken = tuple[int, str]
"""A hash of a whole text, and its beginning."""
Matrix = list[list[float]]
"""Distances between any two answers to a prompt."""


def compare_repeats(
    name: str, once: TaskAnswers, other: TaskAnswers, *, alpha: float = FLIP_ALPHA
) -> SelfFlips | None:
    """Test if the answers of `other` are farther from those of `once` than these are apart.

    The measures are those of `self_flips`: the distance of scores; and of texts, of which equal
    ones are nearest and then those that part later. Their distances are ranked within a prompt.
    Only prompts with all answers count; None if there are none. `once` is the endpoint of this name
    and has two repeats or more. Raises RunFolderError for journals that cannot be read.
    """
    from serve_eval.stats.own_repeats import farther_than_own, rank_distances

    runs = [*once.lines, *other.lines]
    prompts = [p for p in runs[0] if all(p in run for run in runs)]
    if not prompts:
        return None
    own = len(once.lines)
    scores = [_measure([run[p].value for run in runs], _measure_gap) for p in prompts]
    said = [*_read(once, prompts), *_read(other, prompts)]
    spoken = any(one.get(p, _SILENT) != _SILENT for one in said for p in prompts)
    texts = [_measure([one.get(p, _SILENT) for one in said], _measure_parting) for p in prompts]
    measures = [rank_distances(scores), *([rank_distances(texts)] if spoken else [])]
    found = farther_than_own(measures, own)
    by_score = _count(scores, own)
    by_text = _count(texts, own) if spoken else None
    differ = bool(found.excess.any())
    return SelfFlips(
        endpoint=name,
        prompts=len(prompts),
        repeats=(own, len(other.lines)),
        own=by_score[0],
        other=by_score[1],
        only_own=0,
        only_other=sum(_only_other(one, own) for one in scores),
        p=found.p,
        alpha=alpha,
        more=found.p <= alpha,
        agreement=agree_in_all(once, once, pair_own(once)),
        measure="" if not differ else "score" if found.each[0] == min(found.each) else "text",
        score_farther=_positive(found.excess[0]),
        score_nearer=_positive(-found.excess[0]),
        own_texts=None if by_text is None else by_text[0],
        other_texts=None if by_text is None else by_text[1],
        text_farther=_positive(found.excess[1]) if spoken else None,
        text_nearer=_positive(-found.excess[1]) if spoken else None,
    )


_SILENT: Spoken = hash(""), ""


def _read(answers: TaskAnswers, prompts: Sequence[str]) -> list[dict[str, Spoken]]:
    """Return the texts of each repeat, read in one pass."""
    wanted = set(prompts)
    found: list[dict[str, Spoken]] = [{} for _ in answers.lines]
    for run, prompt, response in answer_pairs.read_all_responses(answers):
        if prompt in wanted:
            text = join_text(response)
            found[run].setdefault(prompt, (hash(text), text[:MOST_CHARACTERS]))
    return found


def _measure(answers: Sequence[T], distance: Callable[[T, T], float]) -> Matrix:
    count = len(answers)
    found = [[0.0] * count for _ in answers]
    for i in range(count):
        for j in range(i + 1, count):
            found[i][j] = found[j][i] = distance(answers[i], answers[j])
    return found


def _measure_gap(one: float, other: float) -> float:
    return abs(one - other)


def _measure_parting(one: Spoken, other: Spoken) -> float:
    """Return 0 for equal texts; others are the farther apart, the sooner they part."""
    return 0.0 if one == other else 1.0 / (1.0 + common_prefix(one[1], other[1]))


def _count(distances: Sequence[Matrix], own: int) -> tuple[int, int]:
    """Return the pairs of own answers that differ, and the pairs of an own and another one."""
    mine = sum(one[i][j] > 0.0 for one in distances for i in range(own) for j in range(i))
    across = sum(one > 0.0 for matrix in distances for row in matrix[:own] for one in row[own:])
    return mine, across


def _only_other(distances: Matrix, own: int) -> bool:
    """Return True if own answers are all equal and another one differs from them."""
    return not any(map(any, (row[:own] for row in distances[:own]))) and any(distances[0][own:])


def _positive(excess: FloatArray) -> int:
    return int((excess > 1e-9).sum())
