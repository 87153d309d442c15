"""Test if two endpoints differ more than one of them differs from itself, by two measures.

A prompt that one endpoint answered twice has three answers: its first one, its second one and the
other endpoint's. Each measure asks which of the last two is farther from the first. If the
endpoints are alike, the two can be exchanged: either is equally likely to be farther, and the signs
of all measures flip together.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from serve_eval.evidence.agreement.answer_pairs import TaskAnswers, agreement, another_score, texts
from serve_eval.schema import SelfFlips
from serve_eval.stats.common_prefix import common_prefix
from serve_eval.storage.records.scores import ScoreRecord

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
    from serve_eval.stats.min_p import min_p

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
