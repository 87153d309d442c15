"""Test if two endpoints differ more than one of them differs from itself.

The test of nondeterminism exchanges a second answer of one side for an answer of the other. Both
must then be drawn alike, given the first answer. A repeat has a seed of its own, derived from the
seed of its run; second answers of the same samples have the seeds of the first ones.

A prompt that one endpoint answered twice has three answers: its first one, its second one and the
other endpoint's. Each measure asks which of the last two is farther from the first. If the
endpoints are alike, the two can be exchanged: either is equally likely to be farther, and the signs
of all measures flip together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, TypeVar

from serve_eval.evidence import answer_pairs
from serve_eval.evidence.answer_pairs import (
    TaskAnswers,
    agree_in_all,
    agreement,
    another_score,
    pair_own,
    texts,
)
from serve_eval.evidence.whole_answer import join_text
from serve_eval.schema import SelfFlips
from serve_eval.stats.distances import common_prefix
from serve_eval.storage.scores import ScoreRecord

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray


Drawn = Literal["same", "seedless", "other_seeds"]
"""The way in which answers of one side to a prompt are drawn: the `same` draw again (with the same
seed, or greedily), `seedless`, or with `other_seeds`."""
UNMEASURED = (
    "not measured: the repeats of a side have sampling seeds of their own, and A and B answered"
    " with equal seeds; to measure it, compare two endpoints, which asks each some prompts again"
    " with the same seeds (--self)"
)
"""The reason why two runs with repeats and equal seeds do not show their nondeterminism."""


def find_seed(answers: TaskAnswers) -> str | None:
    """Return the sampling seed that a run drew its answers with.

    None without one, and at temperature 0, where no seed is sent.
    """
    seed = answers.task.fingerprint.get("seed", "null")
    return None if seed == "null" or _is_greedy(answers) else seed


def _is_greedy(answers: TaskAnswers) -> bool:
    return answers.task.fingerprint.get("temperature", "null") in ("0", "0.0")


def find_drawn(once: TaskAnswers, *, repeats: bool) -> Drawn:
    """Return how further answers of a side are drawn: its `repeats`, or answers of a second run.

    A side disagrees with itself if the same draw gives another answer. Repeats with seeds of their
    own differ by them, which is no disagreement, and draws without a seed differ more than draws
    with one: counts of two sides compare only if both are drawn in one way.
    """
    if find_seed(once) is not None:
        return "other_seeds" if repeats else "same"
    return "same" if _is_greedy(once) else "seedless"


def second_show_noise(once: TaskAnswers, other: TaskAnswers) -> bool:
    """Return True if second answers with the same seeds are drawn as the other side's are."""
    return find_seed(once) in (None, find_seed(other))


def repeats_show_noise(once: TaskAnswers, other: TaskAnswers) -> bool:
    """Return True if the repeats of a side are drawn as the other side's answers are."""
    seed = find_seed(once)
    return seed is None or seed != find_seed(other)


FLIP_ALPHA = 0.01
"""Probability of reporting that two equal endpoints differ more than one of them differs from
itself."""
Texts = Mapping[str, str]
"""Answers by prompt."""


def self_flips(
    name: str,
    once: TaskAnswers,
    again: TaskAnswers,
    other: TaskAnswers,
    *,
    again_run: int = 0,
    other_run: int = 0,
    differ: Callable[[ScoreRecord, ScoreRecord], bool] = another_score,
    exchangeable: bool = True,
    said: Sequence[Texts] | None = None,
    alpha: float = FLIP_ALPHA,
) -> SelfFlips | None:
    """Test if `other` is farther from the first answers of `once` than the second ones in `again`.

    By score, an answer for which `differ` holds is farther than one for which it does not; of two
    such answers, the one with the more distant score is farther. By text, the same text is nearest,
    and otherwise the text that departs later. The p is that of the smaller p-value of both measures
    (`stats.min_p`).

    If `exchangeable` is False, `other` may, on a healthy server, depart from `once` at other places
    or by other amounts than `again`: then only `differ` counts. `said` are the texts of the three
    runs; by default they are read from the journals. Returns None if no prompt was answered each
    time. Raises RunFolderError for journals that cannot be read.
    """
    first, second, across = once.lines[0], again.lines[again_run], other.lines[other_run]
    prompts = [prompt for prompt in first if prompt in second and prompt in across]
    if not prompts:
        return None
    own = {p for p in prompts if differ(first[p], second[p])}
    between = {p for p in prompts if differ(first[p], across[p])}

    def distance(prompt: str, line: ScoreRecord, changed: set[str]) -> tuple[bool, float]:
        return prompt in changed, abs(line.value - first[prompt].value) if exchangeable else 0.0

    by_score = {
        p: _sign(distance(p, second[p], own), distance(p, across[p], between)) for p in prompts
    }
    if not exchangeable:
        said = None
    elif said is None:
        said = (
            texts(once, prompts),
            texts(again, prompts, again_run),
            texts(other, prompts, other_run),
        )
    by_text = None if said is None else _by_text(prompts, *said)
    counts = Counter((by_score[p], 0 if by_text is None else by_text[p]) for p in prompts)
    from serve_eval.stats.sign_tests import min_p

    found = min_p(counts)
    scores, spoken = (
        Counter(by_score.values()),
        Counter(by_text.values()) if by_text is not None else None,
    )
    return SelfFlips(
        endpoint=name,
        prompts=len(prompts),
        own=len(own),
        other=len(between),
        only_own=len(own - between),
        only_other=len(between - own),
        p=found.p_mid,
        alpha=alpha,
        more=found.p_mid <= alpha,
        agreement=agreement(once, again, b_run=again_run, among=prompts),
        measure=(
            "" if set(counts) == {(0, 0)} else "score" if found.each[0] <= found.each[1] else "text"
        ),
        score_farther=scores[1],
        score_nearer=scores[-1],
        own_texts=(
            None if by_text is None or said is None else _count_changed(prompts, said[0], said[1])
        ),
        other_texts=(
            None if by_text is None or said is None else _count_changed(prompts, said[0], said[2])
        ),
        text_farther=None if spoken is None else spoken[1],
        text_nearer=None if spoken is None else spoken[-1],
    )


def _by_text(
    prompts: Sequence[str], first: Texts, second: Texts, across: Texts
) -> dict[str, int] | None:
    """Return the signs by text, or None if all answers are empty, as for likelihoods."""
    if not any(one.get(p) for one in (first, second, across) for p in prompts):
        return None

    def distance(prompt: str, other: Texts) -> float:
        one, said = first.get(prompt, ""), other.get(prompt, "")
        return -math.inf if one == said else -float(common_prefix(one, said))

    return {p: _sign(distance(p, second), distance(p, across)) for p in prompts}


def _sign(own: float | tuple[bool, float], other: float | tuple[bool, float]) -> int:
    """Return 1 if the other answer is farther, -1 if the own second one is, 0 if neither."""
    return (other > own) - (other < own)  # type: ignore[operator]


def _count_changed(prompts: Sequence[str], first: Texts, other: Texts) -> int:
    return sum(first.get(p, "") != other.get(p, "") for p in prompts)


T = TypeVar("T")
MOST_CHARACTERS = 4000
"""Characters of a text that tell where it parts from another one; all of them tell if it does."""
Spoken = tuple[int, str]
"""A hash of a whole text, and its beginning."""
Matrix = list[list[float]]
"""Distances between any two answers to a prompt."""


def compare_repeats(name: str, once: TaskAnswers, other: TaskAnswers) -> SelfFlips | None:
    """Test if the answers of `other` are farther from those of `once` than these are apart.

    The measures are those of `self_flips`: the distance of scores; and of texts, of which equal
    ones are nearest and then those that part later. Their distances are ranked within a prompt.
    Only prompts with all answers count; None if there are none. `once` is the endpoint of this name
    and has two repeats or more. Raises RunFolderError for journals that cannot be read.
    """
    from serve_eval.stats.distances import farther_than_own, rank_distances

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
        alpha=FLIP_ALPHA,
        more=found.p <= FLIP_ALPHA,
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


def evidence(found: SelfFlips) -> str:
    """Return how far the other endpoint is from the first answers, by the deciding measure."""
    one, other = ("B", "A") if found.endpoint == "A" else ("A", "B")
    p = f"p = {found.p:.2g}"
    if found.repeats is not None:
        by = f", by {found.measure}" if found.measure else ""
        return f"{describe_repeated(found)} ({p}{by})"
    if found.measure == "text":
        line = (
            f"{one}'s texts differ from {other}'s first texts in {found.other_texts} of"
            f" {found.prompts} prompts, {other}'s own second texts in {found.own_texts}"
        )
        if found.own_texts:
            line += f"; {one}'s differ sooner in {found.text_farther}, later in {found.text_nearer}"
        return f"{line} ({p})"
    line = (
        f"{one} and {other} differ in the score of {found.other} of {found.prompts} prompts,"
        f" {other} with itself in {found.own}"
    )
    if (found.score_farther, found.score_nearer) not in {
        (None, None),
        (found.only_other, found.only_own),
    }:
        line += (
            f"; {one}'s are farther from {other}'s first in {found.score_farther}, nearer in"
            f" {found.score_nearer}"
        )
    return f"{line} ({p})"


def describe_repeated(found: SelfFlips) -> str:
    """Return how often two answers to a prompt differ, of one endpoint and across both."""
    one, other = ("A", "B") if found.endpoint == "A" else ("B", "A")
    assert found.repeats is not None
    times, others = found.repeats
    own = _list_shares(found.own, found.own_texts, found.own_pairs)
    across = _list_shares(found.other, found.other_texts, found.other_pairs)
    return (
        f"{found.prompts} prompts, {times} answers of {one} and {others} of {other} to each: two of"
        f" {one} differ in {own}, one of {one} and one of {other} in {across}"
    )


def _list_shares(scores: int, texts: int | None, pairs: int) -> str:
    """Return the shares of pairs with other scores, and with other texts if there are any."""
    said = "" if texts is None else f" and in {texts / pairs:.1%} of texts"
    return f"{scores / pairs:.1%} of scores{said}"


def name_p(found: SelfFlips) -> str:
    """Return the p, and the measure that decided it."""
    return f"p {found.p:.2g}" + (f" by {found.measure}" if found.measure else "")


def conclusion(found: SelfFlips) -> str:
    """Return what the p means. Only both measures together can rule out a difference."""
    if found.more:
        return "more than its own nondeterminism"
    if found.other_texts is None:
        return "not more by score; texts were not compared"
    return "no more than its own nondeterminism"


NOTHING = "nothing found"


def name_loads(
    loads: Sequence[int],
    bad: Collection[int],
    *,
    what: str = "broken",
    likely: Collection[int] = (),
    unclear: Collection[int] = (),
) -> str:
    """Return where a fault is: from a load on, only at one, up to one, or at several.

    `loads` ascend. Those in `likely` are among the bad ones without a proof of their own. Those in
    `unclear` are neither known to be bad nor known to be good, and do not count.
    """
    if not bad:
        return NOTHING
    decided = [load for load in loads if load not in unclear]
    named = [load for load in decided if load in bad]
    words = f"{what} {_phrase(decided, named)}"
    if likely:
        words += f"; likely at {_join(likely)}, not proved alone"
    if unclear:
        words += f"; not decided at {_join(unclear)}"
    return words


def _phrase(decided: Sequence[int], named: Sequence[int]) -> str:
    count = len(named)
    if count == len(decided) > 1:
        return "at all loads"
    if decided[-count:] == named:
        return f"from {named[0]} on"
    if count == 1:
        return f"only at {named[0]}"
    if decided[:count] == named:
        return f"up to {named[-1]}"
    return f"at {_join(named)}"


def _join(loads: Collection[int]) -> str:
    *first, last = map(str, sorted(loads))
    return f"{', '.join(first)} and {last}" if first else last
