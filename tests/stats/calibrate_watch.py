"""Measure how often a watch of a healthy endpoint alarms and how soon it notices a fall.

Part of `make calibrate`; seeded, printed, never asserted. A month is 30 days of a round every ten
minutes.

Prompts differ in their chance of a right answer; most are always or never right. Two answers to one
prompt differ with FLIPS. Some requests fail and some answers are empty. The baseline is learnt from
such answers as well, and all bets of a watch are simulated. If rounds vary, answers of one round
share its state, in the baseline too.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy

from serve_eval.stats import betting
from serve_eval.stats.betting import GRID, mean_lower_bound
from serve_eval.workflows.watch.bets import ACCURACY, ALPHA, FAILURES, FLOOR_ALPHA, USABLE
from tests.stats.calibrate_drift import interval
from tests.stats.simulation import endpoints, run
from tests.workflows.watch.changing_endpoint import DAY, NIGHT, Watch, by_day
from tests.workflows.watch.changing_endpoint import PROMPTS as DAY_PROMPTS

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

Random = numpy.random.Generator

MONTHS, ROUNDS = 1000, 4320
"""Healthy months, and the rounds of one."""
PROMPTS, PASSES, QUESTIONS, TOLERANCE = 200, 8, 20, 0.01
ACCURACY_USUAL, FLIPS = 0.9, 0.03
FAILED, ALLOWED, EMPTY = 0.01, 0.05, 0.002
EDGE_ROUNDS = 1000
FALLS, LATE, RUNS = ((0.05, 8), (0.05, 24), (0.1, 8), (0.3, 8)), (0, 1000), 200
"""Falls with the passes of the baseline before them, rounds before a fall, and runs."""
MOST_QUESTIONS = 60
FLOORS = (
    (0.9, 0.03, 8),
    (0.9, 0.03, 24),
    (0.97, 0.015, 8),
    (0.5, 0.03, 8),
    (0.5, 0.19, 8),
    (0.2, 0.03, 8),
)
"""Accuracy, flip rate and passes of baselines."""
BASELINES = 400
VARYING, VARYING_ROUNDS = 300, 1000
"""Watches whose rounds vary, and the number of their rounds."""
DAILY, DAILY_ROUNDS, DAILY_LOSSES = 40, 3 * 144, (0.0, 0.1)
"""Watches with a daily course, their rounds, and the shares of right answers lost by day."""
WORSE, LOSS = 0.05, 0.3
"""Share of worse rounds, and the share of right answers that such a round loses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watches:
    """Many watches with their baselines.

    Per prompt: the chance of a right answer (`right`) and the mean of the baseline's answers
    (`usual`). Per watch: the least healthy mean difference (`least`). The same for whether there is
    anything to score (`usual_usable`, `least_usable`).
    """

    right: FloatArray
    usual: FloatArray
    least: FloatArray
    usual_usable: FloatArray
    least_usable: FloatArray


def unvarying(random, chances):
    """Return the chances unchanged: all rounds are alike."""
    return chances


def shifted(sd):
    """Move all logits of a round by one normal variable of this standard deviation."""

    def state(random, chances):
        odds = numpy.exp(sd * random.standard_normal((len(chances), 1)))
        return chances * odds / (1.0 - chances + chances * odds)

    return state


def sometimes_worse(random, chances):
    """Let some rounds lose a share of their right answers."""
    return chances * numpy.where(random.random((len(chances), 1)) < WORSE, 1.0 - LOSS, 1.0)


def watches(random, months, passes=PASSES):
    """Return watches that have learnt their baselines."""
    right = endpoints(random, (months, PROMPTS), flip_rate=FLIPS, accuracy=ACCURACY_USUAL)
    usable = random.random((passes, months, PROMPTS)) >= EMPTY
    scores = run(random, numpy.broadcast_to(right, usable.shape)) * usable
    usual, least = _baseline(scores, FLOOR_ALPHA[ACCURACY])
    usual_usable, least_usable = _baseline(usable.astype(float), FLOOR_ALPHA[USABLE])
    return Watches(
        right=right, usual=usual, least=least, usual_usable=usual_usable, least_usable=least_usable
    )


def varying(random, months, questions, state):
    """Return watches whose rounds vary, with chances of a wrong answer of Beta(.5, 9.5).

    No answer is empty.
    """
    right = 1.0 - random.beta(0.5, 9.5, (months, PROMPTS))
    scores = numpy.empty((PASSES, months, PROMPTS))
    for row in scores:
        order = numpy.argsort(random.random((months, PROMPTS)), axis=1)
        for first in range(0, PROMPTS, questions):
            asked = order[:, first : first + questions]
            given = run(random, state(random, numpy.take_along_axis(right, asked, axis=1)))
            numpy.put_along_axis(row, asked, given, axis=1)
    usual, least = _baseline(scores, FLOOR_ALPHA[ACCURACY])
    none = numpy.ones_like(usual)
    return Watches(
        right=right, usual=usual, least=least, usual_usable=none, least_usable=-numpy.ones(months)
    )


def _baseline(scores, alpha):
    """Return the mean score of each prompt, and the least healthy mean difference from it."""
    floors = [betting.floor(scores[:, i], alpha) for i in range(scores.shape[1])]
    usual = scores.mean(axis=0)
    return usual, numpy.array(floors) - TOLERANCE - usual.mean(axis=1)


def alarms(
    random,
    known,
    rounds,
    questions,
    *,
    fall=0.0,
    after=0,
    round_means=False,
    state=unvarying,
    failed_share=FAILED,
    empty_share=EMPTY,
):
    """Return the round of each watch's alarm by bet, 0 if there was none.

    From round `after` + 1 on, a share `fall` of the prompts that were always right is always wrong.
    """
    months = len(known.right)
    rows, right = numpy.arange(months)[:, None], known.right
    logs = {kind: numpy.full((months, len(GRID)), -math.inf) for kind in ALPHA}
    found = {kind: numpy.zeros(months, dtype=numpy.int64) for kind in ALPHA}
    room = numpy.sort(1.0 - known.usual_usable, axis=1)[:, -questions:].mean(axis=1)
    most = (
        numpy.array([betting.highest_mean(row.tolist(), questions) for row in known.usual])
        if round_means
        else room
    )
    for t in range(1, rounds + 1):
        if fall and t == after + 1:
            sure = right == 1.0
            right = numpy.where(
                sure & (random.random(right.shape) < fall / sure.mean()), 0.0, right
            )
        drawn = random.random((months, PROMPTS), dtype=numpy.float32)
        if round_means:
            places = (random.random((months, 1)) + numpy.arange(questions)) * PROMPTS / questions
            asked = numpy.argsort(known.usual + 1e-6 * drawn, axis=1)[rows, places.astype(int)]
        else:
            asked = numpy.argpartition(drawn, questions, axis=1)[:, :questions]
        shape = asked.shape
        failed = random.random(shape) < failed_share
        usable = random.random(shape) >= empty_share
        scores = numpy.where(failed, 1.0, run(random, state(random, right[rows, asked])) * usable)
        shown = numpy.where(failed, 1.0, usable)
        values, given = scores - known.usual[rows, asked], shown - known.usual_usable[rows, asked]
        if round_means:
            gained = {
                ACCURACY: betting.gains(values.mean(axis=1)[:, None], known.least, most),
                USABLE: betting.gains(given.mean(axis=1)[:, None], known.least_usable, room),
            }
        else:
            gained = {
                ACCURACY: betting.gains(values, known.least, 1.0),
                USABLE: betting.gains(given, known.least_usable, 1.0),
            }
        gained[FAILURES] = betting.gains(-failed.mean(axis=1)[:, None], -ALLOWED, 0.0)
        for kind, alpha in ALPHA.items():
            logs[kind] = betting.grow(logs[kind], t, gained[kind])
            over = betting.log_evidence(logs[kind], t) >= -math.log(alpha)
            found[kind][over & (found[kind] == 0)] = t
    return found


def healthy():
    """Return the table of alarms in healthy months."""
    random = numpy.random.default_rng(9)
    known = watches(random, MONTHS)
    found = alarms(random, known, ROUNDS, QUESTIONS)
    slack = 100.0 * (known.right.mean(axis=1) - (known.least + known.usual.mean(axis=1)))
    at_edge = replace(known, least=(known.right * (1.0 - EMPTY) - known.usual).mean(axis=1))
    edge = int((alarms(random, at_edge, EDGE_ROUNDS, QUESTIONS)[ACCURACY] > 0).sum())
    lines = [
        "| healthy months | rounds of each | alarms by "
        + " | alarms by ".join(ALPHA)
        + " | with any | allowed |"
    ]
    lines.append("|---" * (4 + len(ALPHA)) + "|")
    counts = [int((rounds > 0).sum()) for rounds in found.values()]
    some = int(numpy.any([rounds > 0 for rounds in found.values()], axis=0).sum())
    allowed = (sum(ALPHA.values()) + sum(FLOOR_ALPHA.values())) * MONTHS
    lines.append(
        f"| {MONTHS} | {ROUNDS} | {' | '.join(map(str, counts))} | {some} | {allowed:.0f} |"
    )
    lines += [
        "",
        f"The accuracy that is bet on lay {slack.mean():.1f} points below the true one on average.",
    ]
    lines += [
        "",
        f"Bet on the true accuracy itself, {edge} alarmed by it within {EDGE_ROUNDS} rounds; ",
    ]
    lines[-1] += f"{ALPHA[ACCURACY] * MONTHS:.0f} are allowed, however long it runs."
    return "\n".join(lines)


def floors():
    """Return the table of floors: how far they are below the true accuracy, and how often above it.

    The distance is given before and after the change of the method.
    """
    lines = [
        (
            "| accuracy | flip rate | passes | points below, by the first pass | by all earlier"
            " ones | too high, % |"
        ),
        "|--:|--:|--:|--:|--:|--:|",
    ]
    alpha = FLOOR_ALPHA[ACCURACY]
    for accuracy, flips, passes in FLOORS:
        random = numpy.random.default_rng([round(100 * accuracy), round(1000 * flips), passes])
        before, after = [], []
        for _ in range(BASELINES):
            right = endpoints(random, PROMPTS, flip_rate=flips, accuracy=accuracy)
            scores = run(random, numpy.broadcast_to(right, (passes, PROMPTS)))
            old = scores[0].mean() + mean_lower_bound((scores[1:] - scores[0]).ravel(), alpha)
            before.append(100.0 * (right.mean() - old))
            after.append(100.0 * (right.mean() - betting.floor(scores, alpha)))
        high = sum(gap < 0.0 for gap in after)
        low, top = interval(high, BASELINES)
        cells = f"{numpy.mean(before):.2f} | {numpy.mean(after):.2f} | {100 * high / BASELINES:.1f}"
        mark = " (!)" if low > alpha else ""
        lines.append(
            f"| {accuracy:g} | {flips:g} | {passes} | {cells} [{100 * low:.1f},"
            f" {100 * top:.1f}]{mark} |"
        )
    return "\n".join(lines)


def dependent():
    """Return the table of alarms if whole rounds vary."""
    settings = {
        "independent": unvarying,
        "logits of a round shift, sd .3": shifted(0.3),
        "logits of a round shift, sd .6": shifted(0.6),
        f"{WORSE:.0%} of the rounds lose {LOSS:.0%}": sometimes_worse,
    }
    lines = [
        (
            "| rounds | questions | floor too high | answers bet on | round means | at the edge:"
            " answers | round means |"
        ),
        "|---|--:|--:|--:|--:|--:|--:|",
    ]
    for place, (name, state) in enumerate(settings.items()):
        for questions in (QUESTIONS, MOST_QUESTIONS):
            random = numpy.random.default_rng([place, questions])
            known = varying(random, VARYING, questions, state)
            true = numpy.mean(
                [state(random, known.right).mean(axis=1) for _ in range(2000)], axis=0
            )
            floor = known.least + TOLERANCE + known.usual.mean(axis=1)
            cells = [_share(int((floor > true).sum()), VARYING, FLOOR_ALPHA[ACCURACY])]
            for watched in (known, replace(known, least=true - known.usual.mean(axis=1))):
                for means in (False, True):
                    found = alarms(
                        random,
                        watched,
                        VARYING_ROUNDS,
                        questions,
                        round_means=means,
                        state=state,
                        failed_share=0.0,
                        empty_share=0.0,
                    )[ACCURACY]
                    cells.append(_share(int((found > 0).sum()), VARYING, ALPHA[ACCURACY]))
            lines.append(f"| {name} | {questions} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _share(hits, trials, allowed):
    low, high = interval(hits, trials)
    return (
        f"{100 * hits / trials:.1f} [{100 * low:.1f},"
        f" {100 * high:.1f}]{' (!)' if low > allowed else ''}"
    )


def falls():
    """Return the table of delays until falls are noticed."""
    lines = [
        f"| fall | passes | bet on | {' | '.join(_columns())} |",
        "|---" * (3 + len(_columns())) + "|",
    ]
    for means in (False, True):
        for fall, passes in FALLS:
            cells = []
            for after in LATE:
                for questions in (QUESTIONS, MOST_QUESTIONS):
                    random = numpy.random.default_rng([round(100 * fall), passes, after, questions])
                    known = watches(random, RUNS, passes)
                    found = alarms(
                        random,
                        known,
                        after + 1000,
                        questions,
                        fall=fall,
                        after=after,
                        round_means=means,
                    )[ACCURACY]
                    late = numpy.where(found > after, found - after, numpy.inf)
                    middle, most = numpy.quantile(late, [0.5, 0.9], method="inverted_cdf")
                    cells.append(f"{_rounds(middle)}, {_rounds(most)}")
            bet_on = "round means" if means else "answers"
            lines.append(f"| {100 * fall:.0f} points | {passes} | {bet_on} | {' | '.join(cells)} |")
    return "\n".join(lines)


def daily():
    """Return the table of alarms of endpoints that are worse at the same hours of each day."""
    lines = [
        "| worse from 9 to 17 o'clock by | a baseline of the night | of a day |",
        "|--:|--:|--:|",
    ]
    for loss in DAILY_LOSSES:
        cells = []
        for rules in (NIGHT, DAY):
            accused = 0
            for seed in range(DAILY):
                random = numpy.random.default_rng([round(100 * loss), seed])
                right = endpoints(
                    random, DAY_PROMPTS, flip_rate=FLIPS, accuracy=ACCURACY_USUAL
                ).tolist()
                watch = Watch(rules, seed, right=right)
                watch.learn(by_day(loss))
                found = watch.play(by_day(loss), DAILY_ROUNDS)
                accused += any(alarm.kind == ACCURACY for alarm in found)
            cells.append(_share(accused, DAILY, 0.01))
        lines.append(f"| {loss:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _columns():
    return [
        f"{'at once' if not after else f'after {after} rounds'}, {questions} questions a round"
        for after in LATE
        for questions in (QUESTIONS, MOST_QUESTIONS)
    ]


def _rounds(count):
    return f"{count:.0f}" if math.isfinite(count) else "over 1000"


def tables():
    """Return all tables."""
    return "\n\n".join(
        [
            healthy(),
            f"Floors of {BASELINES} baselines of {PROMPTS} prompts:",
            floors(),
            f"Alarms by accuracy within {VARYING_ROUNDS} rounds, in % of {VARYING} watches:",
            dependent(),
            f"Alarms by accuracy within three days, in % of {DAILY} watches of {DAY_PROMPTS}"
            " prompts, if the endpoint is worse at\nthe same hours of each day:",
            daily(),
            f"Rounds until half, and nine tenths, of {RUNS} watches noticed:",
            falls(),
        ]
    )


def main():
    """Print all tables."""
    print(tables())


if __name__ == "__main__":
    main()
