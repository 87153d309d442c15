"""The drift chart of one series of runs: its measure, its noise, and its declines.

The chart is the self-starting cumulative sum of `stats.drift`. It only warns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC

from serve_eval.series.history import Night, Series
from serve_eval.series.noise import STARTING_RUNS, Noise, measure_noise
from serve_eval.stats.drift import LIMIT, SLACK, DriftPoint, drift
from serve_eval.stats.false_alarms import false_alarm_chance, limit_for
from serve_eval.stats.waves import NEEDED, find_start, leave_waves
from serve_eval.storage.records.scores import has_scores, read_values

ALIKE = 3
"""Consecutive runs without a flip from which serving counts as deterministic."""
PAIRED, TO_REFERENCE, VALUE = "paired difference to the reference", "value minus reference", "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """The chart of one series.

    `x` are the values of `measure` in points (negative is worse). `flips` counts the samples whose
    score differs from the run before (None if a run has no stored scores). `sd` is the standard
    deviation of one run's value in points, at least that of a single flip. `false_alarm_chance` is
    the probability that an unchanged endpoint exceeds `limit` within `RUNS` runs; it includes the
    uncertainty of the noise.
    """

    series: Series
    measure: str
    x: tuple[float, ...]
    noise: Noise
    sd: float
    flips: tuple[int | None, ...]
    points: tuple[DriftPoint, ...]
    limit: float
    false_alarm_chance: float
    warnings: tuple[str, ...]

    @property
    def alarms(self) -> list[int]:
        """Positions of the runs at which the sum exceeds the limit."""
        return [place for place, point in enumerate(self.points) if point.alarm]


def chart(series: Series, *, limit: float | None = None) -> Chart:
    """Chart a series. The default `limit` is LIMIT, raised if the noise is uncertain.

    Raises RunFolderError if scores cannot be read, or if the metric has no bounds and no scores to
    measure the noise. Raises ServeEvalError if the limit is not above 0.
    """
    measure, x = _measure(series)
    first, flips, changed = _compare(series)
    noise = measure_noise(series, first)
    used = limit if limit is not None else limit_for(noise.scale) if noise.measured else LIMIT
    scale = abs(series.metric.scale)
    shares = [value / scale for value in x]
    plain = drift(shares, noise.variance, series.n, slack=SLACK, limit=used)
    sd = math.sqrt(max(noise.variance, 1 / series.n) / series.n)
    points = leave_waves(plain, [share / sd for share in shares], used)
    told = Chart(
        series=series,
        measure=measure,
        x=tuple(x),
        noise=noise,
        sd=scale * sd,
        flips=tuple(flips),
        points=tuple(points),
        limit=used,
        false_alarm_chance=false_alarm_chance(used, noise.scale),
        warnings=() if noise.warning is None else (noise.warning,),
    )
    return replace(
        told,
        warnings=(
            *_alarm(told),
            *_waves(told, plain),
            *_single_flips(told, changed),
            *told.warnings,
            *_elsewhere(series),
        ),
    )


def _measure(series: Series) -> tuple[str, list[float]]:
    """Return the best measure that all runs have, and its values in points (negative is worse).

    A self-starting chart is blind to a constant, so subtracting the same reference changes nothing.
    A reference that was replaced within the series is not used: its step would look like a drift.
    """
    sign = 1.0 if series.metric.higher_is_better else -1.0
    nights = series.nights
    paired = [night.paired for night in nights if night.paired is not None]
    files = {r.runs.sha256 if (r := night.reference) and r.runs else None for night in nights}
    if len(paired) == len(nights) and len(files) == 1:
        return PAIRED, paired
    values = {None if night.reference is None else night.reference.value for night in nights}
    if len(values) == 1 and (reference := next(iter(values))) is not None:
        return TO_REFERENCE, [sign * (night.value - reference) for night in nights]
    return VALUE, [sign * night.value for night in nights]


def _scores(night: Night, task: str) -> dict[str, float] | None:
    """Return the score of each sample, or None without a file.

    Raises RunFolderError if the file is damaged.
    """
    return read_values(night.run, task) if has_scores(night.run, task) else None


def _compare(series: Series) -> tuple[list[Mapping[str, float]], list[int | None], list[list[str]]]:
    """Return the scores of the first runs, and the samples of each run that changed their score."""
    first: list[Mapping[str, float]] = []
    flips: list[int | None] = []
    changed: list[list[str]] = []
    before: dict[str, float] | None = None
    for night in series.nights:
        scores = _scores(night, series.task)
        if scores is not None and len(first) < STARTING_RUNS:
            first.append(scores)
        known = before is not None and scores is not None
        names = [
            name
            for name, value in (scores or {}).items()
            if known and before and before.get(name, value) != value
        ]
        flips.append(len(names) if known else None)
        changed.append(names)
        before = scores
    return first, flips, changed


def _alarm(chart: Chart) -> list[str]:
    if not chart.alarms:
        return []
    nights, points = chart.series.nights, chart.points
    last = len(points) - 1
    if not points[last].alarm:
        seen = f"{date(nights[chart.alarms[0]])} to {date(nights[chart.alarms[-1]])}"
        return [f"there was a decline from {seen}; S no longer exceeds {chart.limit:g}"]
    start = find_decline(chart)
    first = next(place for place in chart.alarms if place >= start)
    before, since = chart.x[:start], chart.x[start:]
    fall = math.fsum(before) / len(before) - math.fsum(since) / len(since)
    return [
        f"ALARM: S {points[last].s:.1f} exceeds {chart.limit:g}, first on {date(nights[first])}."
        f" The decline probably began on {date(nights[start])}: on average {fall:.3f} points worse"
        " than before"
    ]


def find_decline(chart: Chart) -> int:
    """Return the position of the run with which the present decline probably began."""
    return max(place for place, point in enumerate(chart.points) if point.s == 0.0) + 1


def _waves(chart: Chart, plain: Sequence[DriftPoint]) -> list[str]:
    """Return what the chart may not conclude because nights may depend on each other."""
    last = len(plain) - 1
    if plain[last].alarm and not chart.points[last].alarm:
        return [
            f"S {plain[last].s:.1f} exceeds {chart.limit:g}, but the nights before the decline come"
            " in waves (autocorrelation) that explain it: no alarm"
        ]
    early = [place for place in chart.alarms if find_start(plain, place) < NEEDED]
    if not early:
        return []
    return [
        f"{find_start(plain, early[-1])} nights before the decline are too few to know their"
        f" autocorrelation ({NEEDED} are needed): the alarm takes nights for independent, and if"
        " they come in waves, it may be one"
    ]


def _single_flips(chart: Chart, changed: Sequence[Sequence[str]]) -> list[str]:
    """Return warnings about flips of a deterministic endpoint: each flip shows that it changed."""
    warnings, alike = [], 1
    for night, flips, names in zip(chart.series.nights, chart.flips, changed, strict=True):
        if flips and (chart.noise.variance == 0.0 or alike >= ALIKE):
            shown = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            warnings.append(
                f"serving was deterministic, but on {date(night)} {flips} samples changed their"
                f" score: {shown}"
            )
        alike = 1 if flips is None or flips else alike + 1
    return warnings


def _elsewhere(series: Series) -> list[str]:
    """Return warnings about changes of the endpoint, which may explain the chart."""
    warnings = []
    addresses = sorted({night.address for night in series.nights})
    if len(addresses) > 1 and not series.simulated:
        warnings.append(f"the runs come from {len(addresses)} addresses: {', '.join(addresses)}")
    for before, night in zip(series.nights, series.nights[1:], strict=False):
        if before.version != night.version:
            warnings.append(
                f"the endpoint's version changed from {before.version} to {night.version} on"
                f" {date(night)}"
            )
    return warnings


def date(night: Night) -> str:
    """Return when a run began, to the minute, in UTC."""
    return f"{night.started_at.astimezone(UTC):%Y-%m-%d %H:%M}"
