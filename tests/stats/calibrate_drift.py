"""Measure false alarms of the drift chart and the cost of its promise, as Markdown tables.

An unchanged endpoint is watched for a year of nights. Part of `make calibrate`; seeded, printed,
never asserted.

Prompts differ in their chance of a wrong answer. A run's number of wrong answers is drawn from its
exact law; the data for the variance is drawn prompt by prompt. "Before" is h = 8, with the estimate
taken for the variance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy
from scipy.stats import beta

from serve_eval.series.chart import STARTING_RUNS, UNEQUAL
from serve_eval.stats.drift import (
    LIMIT,
    MOST,
    NEEDED,
    RUNS,
    SLACK,
    Scale,
    cusum,
    false_alarm_chance,
    find_start,
    leave_waves,
    limit_for,
    measure_scale,
    self_starting,
)
from serve_eval.stats.repeats import instability, successive_dispersion
from tests.stats.simulation import endpoints

Random = numpy.random.Generator
DIFFICULTIES = {
    "all .03": lambda random, n: numpy.full(n, 0.03),
    "Beta(.5, 9.5)": lambda random, n: random.beta(0.5, 9.5, n),
    "Beta(.2, .1)": lambda random, n: random.beta(0.1, 0.2, n),  # of a right answer
    "mixture, .034": lambda random, n: 1.0 - endpoints(random, n, flip_rate=0.034),
}
"""Chances of a wrong answer, by their name in the table."""
SIZES = (30, 100, 198, 1319)
REFERENCES = (2, 3, 10)
ENDPOINTS, SERIES = 100, 40
"""Endpoints of a cell, and series of each."""
LIMITS_LOOKED_AT = 9
EFFECTS, EFFECT_SERIES = (0.0, 0.3, 0.6), 400
"""Standard deviations of a shift of all logits of a run, and series of each."""
WAVES, WAVE_SERIES, WAVE_FALL_AFTER = (
    ((0.0, 0.0), (0.05, 0.5), (0.05, 0.9), (0.05, 0.98), (0.15, 0.5), (0.15, 0.9)),
    400,
    120,
)
"""Spreads and correlations of nights' logit shifts, series of each, and nights before a fall."""
FALLS, BEFORE_FALL, FALL_SERIES = (1.0, 2.0), 60, 400
"""Falls in standard deviations of a run, runs before a fall, and series of each."""


@dataclass(frozen=True, slots=True)
class Cell:
    """Numbers of series with an alarm, and the limits of some series.

    `known`: with the variance known and h = 8; `before` and `after`: with the estimate, under the
    old and the new rule.
    """

    series: int
    known: int
    before: int
    after: int
    limits: tuple[float, ...]


def law(wrong):
    """Return the least number of wrong answers considered, and the chances from it upwards."""
    sure, open_ = int((wrong == 1.0).sum()), wrong[(wrong > 0.0) & (wrong < 1.0)]
    size = 64
    while size < min(len(open_) + 1, 40 + 24 * math.sqrt(float((open_ * (1.0 - open_)).sum()))):
        size *= 2
    low = max(0, round(float(open_.sum())) - size // 2)
    angles = 2.0 * math.pi * numpy.arange(size // 2 + 1) / size
    turned = numpy.exp(-1j * angles) - 1.0
    transform = numpy.exp(1j * angles * low)
    for chance in open_:
        transform = transform * (1.0 + chance * turned)
    return low + sure, numpy.clip(numpy.fft.irfft(transform, size), 0.0, None)


def drawn(random, wrong, shape):
    """Draw numbers of wrong answers of independent runs."""
    low, chances = law(wrong)
    total = numpy.cumsum(chances)
    return numpy.asarray(
        low + numpy.searchsorted(total / total[-1], random.random(shape)), dtype=numpy.float64
    )


def highest(wrong, sd, runs=slice(None)):
    """Return the highest sum of each series in `runs`.

    Rows of `wrong` are series; `sd` is the standard deviation of a number of wrong answers.
    """
    steps = (wrong / sd[:, None]).T
    total, top, before = numpy.zeros(len(sd)), numpy.zeros(len(sd)), numpy.zeros(len(sd))
    wanted = range(len(steps))[runs]
    for t, step in enumerate(steps[: wanted.stop]):
        z = (step - before / t) * math.sqrt(t / (t + 1)) if t else 0.0 * step
        before += step
        total = numpy.maximum(0.0, total + z - SLACK)
        if t in wanted:
            numpy.maximum(top, total, out=top)
    return top


def scale_of(told, dispersion=1.0, run_df=math.inf):
    """Return the chart's standard deviation of a number of wrong answers, and its precision."""
    n, variance = told.prompts, told.variance * dispersion
    used = max(variance, 1.0 / n)
    found = measure_scale(
        variance, told.variance_df, runs=told.runs, prompts=n, used=used, n=n, change=1.0
    )
    return math.sqrt(n * used), Scale(found.ratio, found.df, found.flips, run_df)


def passes(top, scale):
    """Return True if the sum exceeds the limit of the scale, without computing that limit."""
    below = (math.ceil(10.0 * top) - 1) / 10.0  # the highest limit, in tenths, that it exceeds
    return below >= LIMIT and (below >= MOST or false_alarm_chance(below, scale) <= NOMINAL)


NOMINAL = false_alarm_chance(LIMIT)


def measure(random, difficulty, n, runs, *, own, endpoint_count):
    """Simulate series whose variance comes from `runs` reference runs.

    If `own`, it comes from their own first runs, which the chart covers as well.
    """
    known = before = after = 0
    limits = []
    for _ in range(endpoint_count):
        wrong = DIFFICULTIES[difficulty](random, n)
        scores = (random.random((SERIES, runs, n)) < wrong).astype(numpy.float64)
        counts = drawn(random, wrong, (SERIES, RUNS))
        if own:
            counts[:, :runs] = scores.sum(axis=2)
        true = math.sqrt(max(1.0, float((wrong * (1.0 - wrong)).sum())))
        known += int((highest(counts, numpy.full(SERIES, true)) > LIMIT).sum())
        early, late = numpy.zeros(SERIES, dtype=bool), numpy.zeros(SERIES, dtype=bool)
        for seen in range(2, runs + 1) if own else (runs,):
            said = numpy.sqrt(numpy.maximum(1.0, scores[:, :seen].var(axis=1, ddof=1).sum(axis=1)))
            looked_at = (
                slice(seen - 1, seen)
                if own and seen < runs
                else slice(seen - 1 if own else 0, RUNS)
            )
            tops = highest(counts, said, looked_at)
            early |= tops > LIMIT
            for i in numpy.flatnonzero((tops > LIMIT) & ~late):
                late[i] = passes(float(tops[i]), scale_of(instability(scores[i, :seen]))[1])
        before, after = before + int(early.sum()), after + int(late.sum())
        if len(limits) < LIMITS_LOOKED_AT:
            limits.append(limit_for(scale_of(instability(scores[0]))[1]))
    return Cell(endpoint_count * SERIES, known, before, after, tuple(limits))


def chances():
    """Return the lines of the table of false alarms."""
    how = [*(f"{runs} reference runs" for runs in REFERENCES), f"its own first {STARTING_RUNS}"]
    yield f"| difficulties | n | known | {' | '.join(f'{one}: before, after | h' for one in how)} |"
    yield "|---|--:|--:" + "|---|--:" * len(how) + "|"
    for place, difficulty in enumerate(DIFFICULTIES):
        for n in SIZES:
            shown = []
            for runs, own in [*((runs, False) for runs in REFERENCES), (STARTING_RUNS, True)]:
                random = numpy.random.default_rng([place, n, runs, own])
                cell = measure(random, difficulty, n, runs, own=own, endpoint_count=ENDPOINTS)
                low, high = interval(cell.after, cell.series)
                mark = " (!)" if low > NOMINAL else ""
                before, after = 100 * cell.before / cell.series, 100 * cell.after / cell.series
                shown.append(f"{before:.1f}, {after:.1f} [{100 * low:.1f}, {100 * high:.1f}]{mark}")
                shown.append(f"{numpy.median(cell.limits):.1f}")
            yield (
                f"| {difficulty} | {n} | {100 * cell.known / cell.series:.1f} |"
                f" {' | '.join(shown)} |"
            )


def interval(hits, trials):
    """Return the exact 95 % interval (Clopper and Pearson 1934)."""
    low = float(beta.ppf(0.025, hits, trials - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(0.975, hits + 1, trials - hits)) if hits < trials else 1.0


def effects():
    """Return the lines of the table of run effects: 198 prompts of Beta(.5, 9.5)."""
    yield "| sd of a run's logit shift | measured on | without raising, raised where Q says so |"
    yield "|--:|---|---|"
    for sd in EFFECTS:
        for runs, own in ((3, False), (STARTING_RUNS, False), (STARTING_RUNS, True)):
            random = numpy.random.default_rng([round(10 * sd), runs, own])
            plain = raised = 0
            for _ in range(EFFECT_SERIES):
                wrong = random.beta(0.5, 9.5, 198)
                total = RUNS if own else RUNS + runs
                shift = numpy.exp(sd * random.standard_normal((total, 1)))
                scores = random.random((total, 198)) < wrong * shift / (1.0 - wrong + wrong * shift)
                counts = scores.sum(axis=1, dtype=float)[None, -RUNS:]
                first = scores[:runs].astype(float)
                told = instability(first)
                dispersion, run_df = 1.0, math.inf
                if told.p is not None and told.p < UNEQUAL:
                    found = (
                        successive_dispersion(first)
                        if own
                        else (told.dispersion or 1.0, float(told.df))
                    )
                    dispersion, run_df = found or (1.0, math.inf)
                used, scale = scale_of(told)
                plain += passes(float(highest(counts, numpy.array([used]))[0]), scale)
                used, scale = scale_of(told, max(1.0, dispersion), run_df)
                raised += passes(float(highest(counts, numpy.array([used]))[0]), scale)
            low, high = interval(raised, EFFECT_SERIES)
            share = f"{100 * plain / EFFECT_SERIES:.1f}, {100 * raised / EFFECT_SERIES:.1f}"
            mark = " (!)" if low > NOMINAL else ""
            where = f"its own first {runs}" if own else f"{runs} reference runs"
            yield f"| {sd:g} | {where} | {share} [{100 * low:.1f}, {100 * high:.1f}]{mark} |"


def nights():
    """Return the lines of the table of nights that depend on each other: 1319 prompts."""
    yield (
        "| sd of a night's logit shift | correlation with the next night | not estimated"
        f" | with fewer than {NEEDED} nights before | with as many or more |"
    )
    yield "|--:|--:|--:|--:|--:|"
    for sd, rho in WAVES:
        random = numpy.random.default_rng([round(100 * sd), round(100 * rho)])
        plain = early = sure = 0
        for _ in range(WAVE_SERIES):
            wrong = random.beta(0.5, 9.5, 1319)
            slope = float((wrong * (1.0 - wrong)).sum())
            spread = math.sqrt(slope)
            wave, counts = float(random.standard_normal()), []
            for _ in range(RUNS):
                counts.append(spread * float(random.standard_normal()) + sd * slope * wave)
                wave = rho * wave + math.sqrt(1.0 - rho * rho) * float(random.standard_normal())
            row = [-one / spread for one in counts]
            points = cusum(self_starting(row))
            kept = leave_waves(points, row, LIMIT)
            starts = [find_start(points, i) for i, one in enumerate(kept) if one.alarm]
            plain += any(one.alarm for one in points)
            early += any(start < NEEDED for start in starts)
            sure += any(start >= NEEDED for start in starts)
        cells = (_percent(hits, WAVE_SERIES) for hits in (plain, early, sure))
        yield f"| {sd:g} | {rho:g} | {' | '.join(cells)} |"
    yield ""
    yield f"| fall after {WAVE_FALL_AFTER} independent nights | median nights, before | after |"
    yield "|---|--:|--:|"
    for fall in FALLS:
        random = numpy.random.default_rng([round(fall), WAVE_FALL_AFTER])
        delays = []
        for _ in range(WAVE_SERIES):
            row = random.standard_normal(2 * WAVE_FALL_AFTER)
            row[WAVE_FALL_AFTER:] -= fall
            points = cusum(self_starting(row))
            kept = leave_waves(points, row, LIMIT)
            delays.append((_first_after(points), _first_after(kept)))
        before, after = numpy.median(numpy.array(delays), axis=0)
        yield f"| {fall:g} standard deviations | {before:.0f} | {after:.0f} |"


def _first_after(points):
    """Return the nights from the fall to the first alarm; infinite if there is none."""
    late = [i for i, one in enumerate(points) if one.alarm and i >= WAVE_FALL_AFTER]
    return late[0] - WAVE_FALL_AFTER + 1.0 if late else math.inf


def _percent(hits, trials):
    low, high = interval(hits, trials)
    mark = " (!)" if low > NOMINAL else ""
    return f"{100 * hits / trials:.1f} [{100 * low:.1f}, {100 * high:.1f}]{mark}"


def delays():
    """Return the lines of the table of falls of the mixture."""
    yield "| fall | n | before: median runs | after, 3 reference runs | after, its own first 10 |"
    yield "|---|--:|--:|--:|--:|"
    for fall in FALLS:
        for n in (198, 1319):
            cells = []
            for runs, own in ((3, False), (STARTING_RUNS, True)):
                random = numpy.random.default_rng([round(fall), n, runs])
                found = []
                for _ in range(FALL_SERIES):
                    wrong = DIFFICULTIES["mixture, .034"](random, n)
                    scores = (random.random((runs, n)) < wrong).astype(float)
                    counts = drawn(random, wrong, (1, 200))
                    if own:
                        counts[0, :runs] = scores.sum(axis=1)
                    used, scale = scale_of(instability(scores))
                    counts[0, BEFORE_FALL:] += fall * math.sqrt(
                        float((wrong * (1.0 - wrong)).sum())
                    )
                    found.append(
                        (_delay(counts, used, LIMIT), _delay(counts, used, limit_for(scale)))
                    )
                cells.append(numpy.median(numpy.array(found), axis=0))
            yield (
                f"| {fall:g} standard deviation{'s' if fall > 1 else ''} of a run | {n} |"
                f" {cells[0][0]:.0f} | {cells[0][1]:.0f} | {cells[1][1]:.0f} |"
            )


def _delay(wrong, used, limit):
    """Return the number of runs from the fall to the alarm; infinite if there is none."""
    total, before = 0.0, 0.0
    for t, value in enumerate(wrong[0] / used):
        z = (value - before / t) * math.sqrt(t / (t + 1)) if t else 0.0
        before += value
        total = max(0.0, total + z - SLACK)
        if t >= BEFORE_FALL and total > limit:
            return t - BEFORE_FALL + 1.0
    return math.inf


def tables():
    """Return all tables."""
    return "\n".join(
        [
            (
                f"Alarms of an unchanged endpoint within {RUNS} runs, in % of {ENDPOINTS * SERIES}"
                f" series; {100 * NOMINAL:.1f} is promised:"
            ),
            "",
            *chances(),
            "",
            *effects(),
            "",
            *nights(),
            "",
            *delays(),
        ]
    )


def main():
    """Print all tables."""
    print(tables())


if __name__ == "__main__":
    main()
