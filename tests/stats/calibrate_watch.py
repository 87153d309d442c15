"""How often a watch of a healthy endpoint ever alarms, and how soon a fall is noticed: part of `make calibrate`.
Printed, never asserted; seeded. A month is 30 days of a round every ten minutes.

Prompts differ in their chance of a right answer, most of them always or never right; two answers to one prompt differ
with FLIPS. Requests fail and answers are empty now and then. The baseline is learnt from such answers as well, and
everything that a watch bets on is bet on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy

from serve_eval.canary.judging import ACCURACY, ALPHA, FAILURES, FLOOR_ALPHA, USABLE
from serve_eval.stats import vigil
from serve_eval.stats.betting import GRID
from tests.stats.simulation import endpoints, run

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray, IntArray

MONTHS, ROUNDS = 1000, 4320
"""Healthy months, and the rounds of one."""
PROMPTS, PASSES, QUESTIONS, TOLERANCE = 200, 8, 20, 0.01
ACCURACY_USUAL, FLIPS = 0.9, 0.03
FAILED, ALLOWED, EMPTY = 0.01, 0.05, 0.002
EDGE_ROUNDS = 1000
FALLS, LATE, RUNS = ((0.05, 8), (0.05, 24), (0.1, 8), (0.3, 8)), (0, 1000), 200
"""Falls, and the passes of the baseline before them."""
MOST_QUESTIONS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """Many watches with their baselines: per prompt the chance of a right answer, the mean of the answers of the
    baseline, and the least mean difference that is healthy; the same of whether there is anything to score."""

    right: FloatArray
    usual: FloatArray
    least: FloatArray
    usual_usable: FloatArray
    least_usable: FloatArray


def watches(random: numpy.random.Generator, months: int, passes: int = PASSES) -> Watches:
    """Their baselines are learnt."""
    right = endpoints(random, (months, PROMPTS), flip_rate=FLIPS, accuracy=ACCURACY_USUAL)
    usable = random.random((passes, months, PROMPTS)) >= EMPTY
    scores = run(random, numpy.broadcast_to(right, usable.shape)) * usable
    usual, least = _baseline(scores, FLOOR_ALPHA[ACCURACY])
    usual_usable, least_usable = _baseline(usable.astype(float), FLOOR_ALPHA[USABLE])
    return Watches(right=right, usual=usual, least=least, usual_usable=usual_usable, least_usable=least_usable)


def _baseline(scores: FloatArray, alpha: float) -> tuple[FloatArray, FloatArray]:
    """The mean score of each prompt, and the least mean difference from these that is healthy."""
    floors = [vigil.floor(scores[0, i], scores[1:, i], alpha) for i in range(scores.shape[1])]
    usual = scores.mean(axis=0)
    return usual, numpy.array(floors) - TOLERANCE - usual.mean(axis=1)


def alarms(
    random: numpy.random.Generator, known: Watches, rounds: int, questions: int, *, fall: float = 0.0, after: int = 0
) -> dict[str, IntArray]:
    """By what is bet on the round of each watch's alarm, 0 where there was none. From the round behind `after` on, a
    share `fall` of the prompts that were always right is always wrong."""
    months = len(known.right)
    rows, right = numpy.arange(months)[:, None], known.right
    logs = {kind: numpy.full((months, len(GRID)), -math.inf) for kind in ALPHA}
    found = {kind: numpy.zeros(months, dtype=numpy.int64) for kind in ALPHA}
    for t in range(1, rounds + 1):
        if fall and t == after + 1:
            sure = right == 1.0
            right = numpy.where(sure & (random.random(right.shape) < fall / sure.mean()), 0.0, right)
        drawn = random.random((months, PROMPTS), dtype=numpy.float32)
        asked = numpy.argpartition(drawn, questions, axis=1)[:, :questions]
        shape = asked.shape
        failed = random.random(shape) < FAILED
        usable = random.random(shape) >= EMPTY
        scores = numpy.where(failed, 1.0, run(random, right[rows, asked]) * usable)
        shown = numpy.where(failed, 1.0, usable)
        gained = {
            ACCURACY: vigil.gains(scores - known.usual[rows, asked], known.least, 1.0),
            USABLE: vigil.gains(shown - known.usual_usable[rows, asked], known.least_usable, 1.0),
            FAILURES: vigil.gains(-failed.mean(axis=1)[:, None], -ALLOWED, 0.0),
        }
        for kind, alpha in ALPHA.items():
            logs[kind] = vigil.grown(logs[kind], t, gained[kind])
            over = vigil.log_evidence(logs[kind], t) >= -math.log(alpha)
            found[kind][over & (found[kind] == 0)] = t
    return found


def healthy() -> str:
    """Alarms of healthy months."""
    random = numpy.random.default_rng(9)
    known = watches(random, MONTHS)
    found = alarms(random, known, ROUNDS, QUESTIONS)
    slack = 100.0 * (known.right.mean(axis=1) - (known.least + known.usual.mean(axis=1)))
    at_edge = replace(known, least=(known.right * (1.0 - EMPTY) - known.usual).mean(axis=1))
    edge = int((alarms(random, at_edge, EDGE_ROUNDS, QUESTIONS)[ACCURACY] > 0).sum())
    lines = ["| healthy months | rounds of each | alarms by " + " | alarms by ".join(ALPHA) + " | with any | allowed |"]
    lines.append("|---" * (4 + len(ALPHA)) + "|")
    counts = [int((rounds > 0).sum()) for rounds in found.values()]
    some = int(numpy.any([rounds > 0 for rounds in found.values()], axis=0).sum())
    allowed = (sum(ALPHA.values()) + sum(FLOOR_ALPHA.values())) * MONTHS
    lines.append(f"| {MONTHS} | {ROUNDS} | {' | '.join(map(str, counts))} | {some} | {allowed:.0f} |")
    lines += ["", f"The accuracy that is bet on lay {slack.mean():.1f} points below the true one on average."]
    lines += ["", f"Bet on the true accuracy itself, {edge} alarmed by it within {EDGE_ROUNDS} rounds; "]
    lines[-1] += f"{ALPHA[ACCURACY] * MONTHS:.0f} are allowed for ever."
    return "\n".join(lines)


def falls() -> str:
    """How soon falls are noticed."""
    lines = [f"| fall | passes | {' | '.join(_columns())} |", "|---" * (2 + len(_columns())) + "|"]
    for fall, passes in FALLS:
        cells = []
        for after in LATE:
            for questions in (QUESTIONS, MOST_QUESTIONS):
                random = numpy.random.default_rng([round(100 * fall), passes, after, questions])
                rounds = after + 1000
                found = alarms(random, watches(random, RUNS, passes), rounds, questions, fall=fall, after=after)[
                    ACCURACY
                ]
                late = numpy.where(found > after, found - after, numpy.inf)
                middle, most = numpy.quantile(late, [0.5, 0.9], method="inverted_cdf")
                cells.append(f"{_rounds(middle)}, {_rounds(most)}")
        lines.append(f"| {100 * fall:.0f} points | {passes} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _columns() -> list[str]:
    return [
        f"{'at once' if not after else f'after {after} rounds'}, {questions} questions a round"
        for after in LATE
        for questions in (QUESTIONS, MOST_QUESTIONS)
    ]


def _rounds(count: float) -> str:
    return f"{count:.0f}" if math.isfinite(count) else "over 1000"


def tables() -> str:
    """Both tables."""
    return f"{healthy()}\n\nRounds until half, and nine tenths, of {RUNS} watches noticed:\n\n{falls()}"


if __name__ == "__main__":
    print(tables())
