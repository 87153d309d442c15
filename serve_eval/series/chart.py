"""Make the drift chart of one series of runs: its measure, its noise, its declines.

The chart is the self-starting cumulative sum of `stats.drift`. It only warns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC
from pathlib import Path

from serve_eval.errors import ReferenceFileError, RunFolderError, ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.report.pictures import Picture, TrendBand, TrendPoint, draw_trend
from serve_eval.report.summary.figures import in_points
from serve_eval.series.history import Night, Series
from serve_eval.stats.drift import (
    LIMIT,
    NEEDED,
    SLACK,
    DriftPoint,
    Scale,
    drift,
    false_alarm_chance,
    find_start,
    leave_waves,
    limit_for,
    measure_scale,
)
from serve_eval.stats.repeats import instability, successive_dispersion
from serve_eval.storage.scores import has_scores, read_values
from serve_eval.verdicts import reference_samples

ALIKE = 3
"""Consecutive runs without a flip from which serving counts as deterministic."""
PAIRED, TO_REFERENCE, VALUE = "paired difference to the reference", "value minus reference", "value"


@freeze
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


def _compare(series: Series) -> tuple[list[Mapping[str, float]], list[int | None], list[list[str]]]:
    """Return the scores of the first runs, and the samples of each run that changed their score."""
    first: list[Mapping[str, float]] = []
    flips: list[int | None] = []
    changed: list[list[str]] = []
    before: dict[str, float] | None = None
    for night in series.nights:
        scores = read_values(night.run, series.task) if has_scores(night.run, series.task) else None
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


STARTING_RUNS = 10
"""Runs of the series that its noise is measured on. These are the first ones, so that later runs do
not change it."""
UNEQUAL = 0.01
"""p of Cochran's Q below which runs differ as a whole, and not only in single prompts."""


@freeze
class Noise:
    """The run variance v of a chart, in squared units of a sample's score, and its source.

    The chart divides by v. `dispersion` is the factor by which v was raised because runs differ as
    a whole. `scale` describes how well v is known, `known` says the same in words, and `warning`
    names anything unusual. `measured` is False if v is the largest possible value.
    """

    variance: float
    source: str
    known: str
    scale: Scale
    dispersion: float = 1.0
    measured: bool = True
    warning: str | None = None


def measure_noise(series: Series, first: Sequence[Mapping[str, float]]) -> Noise:
    """Return the noise of a run.

    It is measured on the runs of the reference, or else on the first runs of the series. Without
    them it is the largest possible variance: scores within [lo, hi] with mean m have at most the
    variance (hi - m)(m - lo) (Bhatia and Davis 2000, "A better bound on the variance"). This also
    bounds their variance between runs, so the chart then alarms late, never early.

    Raises RunFolderError if the metric has no bounds and no two runs have stored scores.
    """
    if (stored := _of_reference(series)) is not None:
        return _noise_of(series, stored, f"the {len(stored)} runs of the reference", own=False)
    if len(first) > 1:
        names = [name for name in first[0] if all(name in scores for scores in first)]
        if names:
            rows = [[scores[name] for name in names] for scores in first]
            return _noise_of(series, rows, f"the first {len(first)} runs", own=True)
    lo, hi, unit = series.metric.lo, series.metric.hi, series.metric.scale
    if lo is None or hi is None:
        raise RunFolderError(
            f"{series.name}: the metric has no bounds, and no two runs have stored scores to"
            " measure the noise",
            hint="Keep the scores/ of the run folders.",
        )
    mean = math.fsum(night.value / unit for night in series.nights) / len(series.nights)
    most = max(0.0, (hi - mean) * (mean - lo))
    return Noise(
        variance=most,
        source="not measured, because repeated scores are missing; the largest possible value",
        known="variance not measured; the largest possible value",
        scale=Scale(flips=max(series.n * most, 1.0) / (hi - lo) ** 2),
        measured=False,
    )


def _noise_of(series: Series, rows: Sequence[Sequence[float]], runs: str, *, own: bool) -> Noise:
    """Return the noise of these runs, which are the series' `own` or those of its reference.

    If the runs differ as a whole by Cochran's Q, v is raised to the variance between runs by the
    factor Q over its degrees of freedom. For the series' own runs the factor comes from the
    differences of consecutive runs, so that a decline does not hide itself.
    """
    told = instability(rows)
    lo, hi = series.metric.lo, series.metric.hi
    dispersion, run_df, raised, warning = 1.0, math.inf, "", None
    if told.p is not None and told.p < UNEQUAL and told.dispersion is not None:
        dispersion, run_df = told.dispersion, float(told.df)
        if own and (found := successive_dispersion(rows)) is not None:
            dispersion, run_df = found
        dispersion = max(1.0, dispersion)
        factor = f"{math.sqrt(dispersion):.3g}"
        raised = f"; multiplied by {factor}, because these runs differ as a whole"
        warning = (
            f"{runs} differ as a whole (Cochran's Q, p {told.p:.2g}): one of them declined, or runs"
            " vary more than their samples; the standard deviation of a run is multiplied by"
            f" {factor}"
        )
    scale = measure_scale(
        told.variance * dispersion,
        told.variance_df,
        runs=told.runs,
        prompts=told.prompts,
        used=max(told.variance * dispersion, 1.0 / series.n),
        n=series.n,
        change=told.widest or (hi - lo if lo is not None and hi is not None else 1.0),
    )
    rate = (
        ""
        if told.flip_rate is None
        else f"; two of them disagree on {told.flip_rate:.2%} of the samples"
    )
    return Noise(
        variance=told.variance * dispersion,
        source=f"measured on {runs}{rate}{raised}",
        known=f"variance measured on {told.runs} runs of {told.prompts} prompts",
        scale=replace(scale, run_df=run_df),
        dispersion=dispersion,
        warning=warning,
    )


def _of_reference(series: Series) -> list[list[float]] | None:
    """Return the scores of the reference's runs, or None if fewer than two are stored."""
    for night in reversed(series.nights):
        found = night.reference
        if found is None or found.runs is None or len(found.runs.values) < 2:
            continue
        try:
            stored = reference_samples.read(
                Path(found.file).parent / found.runs.samples, found.runs.sha256
            )
        except ReferenceFileError:
            continue
        return [list(run) for run in stored.runs]
    return None


ALARM = "ALARM: "
"""Begins the warning of a chart whose last run alarms."""


def find_alarm(charted: Chart) -> str:
    """Return the words of a chart whose last run alarms: the decline and its begin; else ""."""
    if not charted.points[-1].alarm:
        return ""
    return next(one.removeprefix(ALARM) for one in charted.warnings if one.startswith(ALARM))


def list_warnings(charted: Chart) -> list[str]:
    """Return the warnings of a chart but its alarm."""
    return [one for one in charted.warnings if not one.startswith(ALARM)]


def try_chart(series: Series) -> tuple[Chart | None, Sequence[str]]:
    """Return the chart of a series and its warnings but the alarm, or why there is none."""
    try:
        charted = chart(series)
    except ServeEvalError as error:
        return None, [f"no drift chart: {error}"]
    return charted, list_warnings(charted)


def draw_values(series: Series, charted: Chart | None, title: str) -> Picture | None:
    """Return the values of a series with their alarms, and the reference of the latest run."""
    alarms = set() if charted is None else set(charted.alarms)
    points = [
        TrendPoint(
            at=night.started_at,
            value=night.value,
            interval=night.interval,
            verdict=night.outcome,
            alarm=i in alarms,
        )
        for i, night in enumerate(series.nights)
    ]
    unit = "points" if in_points(series.metric) else series.metric.name
    judged_by = series.nights[-1].judged_by
    band = None
    if judged_by is not None:
        band = TrendBand(reference=judged_by[0], threshold=judged_by[1])
    return draw_trend(title, points, unit, band)


def draw_sums(charted: Chart) -> Picture | None:
    """Return the cumulative sum of a series with the limit beyond which it alarms."""
    points = [
        TrendPoint(at=night.started_at, value=point.s, alarm=point.alarm)
        for night, point in zip(charted.series.nights, charted.points, strict=True)
    ]
    limit = TrendBand(reference=0.0, threshold=charted.limit, names=("no decline", "alarm beyond"))
    title = f"{charted.series.task}: decline as a cumulative sum"
    return draw_trend(title, points, "S (sd of a run)", limit)
