"""Measure how often two endpoints are said to differ more than one from itself.

Covers equal and different endpoints, as a Markdown table. Part of `make calibrate`; seeded,
printed, never asserted.
"""

from collections import Counter
from typing import TYPE_CHECKING

import numpy

from serve_eval.evidence.self_flips import FLIP_ALPHA
from serve_eval.stats.sign_tests import mcnemar, min_p
from serve_eval.workflows.invariants.check import ALPHA
from tests.stats.simulation import altered, endpoints, run

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

    Random = numpy.random.Generator
    Answers = tuple[FloatArray, FloatArray]
    """A score per prompt, and the place where its text departs from the text without noise."""

ROUNDS = 10_000
PROMPTS = (100, 200)
FLIP_RATE, ACCURACY = 0.034, 0.8
NEVER = numpy.inf
"""The place of a text that does not depart."""


def _right_or_wrong(random, n, changed):
    """Let B change its text on a share of the prompts.

    A quarter of these change their score, half of them each way.

    By noise, texts depart at random places in one run in ten, and always if the score is the less
    likely one.
    """
    chances = endpoints(random, n, flip_rate=FLIP_RATE, accuracy=ACCURACY)
    other = (
        altered(random, chances, to_wrong=changed / 8, to_right=changed / 8) if changed else chances
    )
    touched = (random.random(n) < changed) | (other != chances)
    own_place = random.random(n)
    found = []
    for one, apart in ((chances, False), (chances, False), (other, True)):
        scores = run(random, one)
        parts = (random.random(n) < 0.1) | (scores != (one >= 0.5))
        places = numpy.where(parts, random.random(n), NEVER)
        if apart:
            places = numpy.where(touched, numpy.minimum(places, own_place), places)
        found.append((scores, places))
    return found


def _continuous(random, n, changed):
    """Return scores without texts; noise has the deviation 1, and B adds noise of its own."""
    true = random.normal(0.0, 100.0, n)
    other = true + random.normal(0.0, changed, n)
    nowhere = numpy.full(n, NEVER)
    return [(one + random.normal(0.0, 1.0, n), nowhere) for one in (true, true, other)]


WORLDS = {
    "right or wrong, with texts": (_right_or_wrong, (0.0, 0.05, 0.1, 0.2)),
    "continuous scores": (_continuous, (0.0, 0.5, 1.0, 2.0)),
}


def _signs(answers):
    """Return the signs by score and by text.

    The sign is 1 if B's answer is farther from A's first answer than A's second one.
    """
    (first, place), (second, place_again), (across, place_across) = answers
    by_score = numpy.sign(numpy.abs(across - first) - numpy.abs(second - first))
    # Two texts part where the first of them departs; texts that never depart are equal.
    own, other = numpy.minimum(place, place_again), numpy.minimum(place, place_across)
    by_text = numpy.where(own == other, 0.0, numpy.where(other < own, 1.0, -1.0))
    return by_score, by_text


def _today(answers):
    """Test by changed scores alone."""
    first, second, across = (scores for scores, _ in answers)
    own, other = second != first, across != first
    return mcnemar(int((other & ~own).sum()), int((own & ~other).sum())).p_mid <= FLIP_ALPHA


def _both(answers):
    by_score, by_text = _signs(answers)
    counts = Counter(zip(by_score.astype(int).tolist(), by_text.astype(int).tolist(), strict=True))
    return min_p(counts).p_mid <= FLIP_ALPHA


def percent(found, rounds):
    """Format a share in percent with three digits."""
    return f"{100 * found / rounds:.3g}"


def tables():
    """Return the table."""
    lines = [
        "| endpoints | prompts | B is off by | by changed scores | by score and text |",
        "|---|---|---|---|---|",
    ]
    for name, (world, sizes) in WORLDS.items():
        for n in PROMPTS:
            for size in sizes:
                random = numpy.random.default_rng(n)
                rounds = ROUNDS if size == 0.0 else max(1, ROUNDS // 10)
                drawn = [world(random, n, size) for _ in range(rounds)]
                cells = [percent(sum(map(rule, drawn)), rounds) for rule in (_today, _both)]
                lines.append(f"| {name} | {n} | {size:g} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main():
    print(tables())


ARMS = 5
"""Results under Holm's correction: the arms of one task without a chat template and chunks."""


def _alone(random, n, *, benign, damage, every_time):
    """Return whether `alone` is broken by changed answers, and by the direction of the scores.

    Changed answers are compared with those of `again`.
    """
    chances = endpoints(random, n, flip_rate=FLIP_RATE, accuracy=ACCURACY)
    # The prompts that other numerics move are drawn once more: neither way of computing is better.
    moved = numpy.flatnonzero(random.random(n) < benign / (2 * ACCURACY * (1 - ACCURACY)))
    many = chances.copy()
    many[moved] = endpoints(random, len(moved), flip_rate=FLIP_RATE, accuracy=ACCURACY)
    if damage and every_time:
        many = numpy.where(random.random(n) < damage, 0.0, many)
    elif damage:
        many = many * (1.0 - damage)
    base, again = run(random, many), run(random, many)
    alone, alone_again = run(random, chances), run(random, chances)
    level = ALPHA / ARMS
    changed = mcnemar(
        int(((alone != base) & (again == base)).sum()),
        int(((again != base) & (alone == base)).sum()),
    )
    change = base + again - alone - alone_again
    worse, better = int((change < 0).sum()), int((change > 0).sum())
    directed = min(1.0, 2 * mcnemar(max(worse, better), min(worse, better)).p_mid)
    return changed.p_mid <= level, directed <= level


BATCHES = {
    "batches change nothing": (0.0, 0.0, False),
    "other numerics: 5 % of the answers, either way": (0.05, 0.0, False),
    "other numerics: 10 % of the answers, either way": (0.1, 0.0, False),
    "other numerics: 20 % of the answers, either way": (0.2, 0.0, False),
    "10 % of the answers wrong, others each time": (0.0, 0.1, False),
    "10 % of the answers wrong, the same ones each time": (0.0, 0.1, True),
    "20 % of the answers wrong, the same ones each time": (0.0, 0.2, True),
}


def tables_batches():
    """Return the table."""
    lines = [
        "| with many in flight | prompts | by changed answers | by direction |",
        "|---|---|---|---|",
    ]
    for what, (benign, damage, every_time) in BATCHES.items():
        for n in PROMPTS:
            random = numpy.random.default_rng(n)
            rounds = max(1, ROUNDS // 5) if damage else ROUNDS
            found = [
                _alone(random, n, benign=benign, damage=damage, every_time=every_time)
                for _ in range(rounds)
            ]
            cells = [percent(sum(column), rounds) for column in zip(*found, strict=True)]
            lines.append(f"| {what} | {n} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main_batches():
    print(tables_batches())
