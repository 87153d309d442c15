"""Say which answers show an endpoint's own nondeterminism, given the sampling seeds of two runs.

The test of nondeterminism exchanges a second answer of one side for an answer of the other. Both
must then be drawn alike, given the first answer. A repeat has a seed of its own, derived from the
seed of its run; second answers of the same samples have the seeds of the first ones.
"""

from __future__ import annotations

from typing import Literal

from serve_eval.evidence.agreement.answer_pairs import TaskAnswers

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
