"""The drift chart of one series of runs: in which unit it is measured, how noisy a run is, where a
decline shows.

The chart is the self-starting cumulative sum of `stats.drift`. It only warns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path

from serve_eval.errors import ReferenceFileError, RunFolderError
from serve_eval.evaluation.storage.records.scores import has_scores, read_values
from serve_eval.stats.drift import LIMIT, SLACK, DriftPoint, drift
from serve_eval.stats.false_alarms import Scale, false_alarm_chance, limit_for, measure_scale
from serve_eval.stats.instability import instability, successive_dispersion
from serve_eval.verdicts import reference_samples
from serve_eval.workflows.drift.history import Night, Series

STARTING_RUNS = 10
"""Runs of the series itself that its noise is measured on: the first ones, so that later nights
leave it as it is."""
ALIKE = 3
"""Runs in a row without a single flip from which on serving counts as deterministic."""
UNEQUAL = 0.01
"""p of Cochran's Q below which runs differ as a whole, and not prompt by prompt."""
PAIRED, TO_REFERENCE, VALUE = "paired difference to the reference", "value minus reference", "value"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The run variance v that a chart divides by, in squared units of a sample's score, and what it
    is known from.

    `dispersion` is the factor by which v was raised because runs differ as a whole. `scale` says
    how well v is known, `known` the same in words, and `warning` what is odd about it. `measured`
    is false for the most that v can be.
    """

    variance: float
    source: str
    known: str
    scale: Scale
    dispersion: float = 1.0
    measured: bool = True
    warning: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One series charted. `x` (points, negative is worse) is what `measure` says; `flips` counts
    the samples that score another value than in the run before (None: a run has no scores on file);
    `sd` is the standard deviation of one run's value in points, at least that of a single flip.
    `false_alarm_chance` is that of an unchanged endpoint passing `limit` within `RUNS` runs, the
    uncertainty of the noise included.
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
        """Places of the runs at which the sum is beyond the limit."""
        return [place for place, point in enumerate(self.points) if point.alarm]


def chart(series: Series, *, limit: float | None = None) -> Chart:
    """Chart a series. Without a `limit` it is LIMIT, raised as far as the noise is uncertain.

    Raises RunFolderError for scores that cannot be read or a metric without bounds of which nothing
    tells the noise, ServeEvalError for a limit that is not above 0.
    """
    measure, x = _measure(series)
    first, flips, changed = _compare(series)
    noise = _noise(series, first)
    used = limit if limit is not None else limit_for(noise.scale) if noise.measured else LIMIT
    scale = abs(series.metric.scale)
    points = drift(
        [value / scale for value in x], noise.variance, series.n, slack=SLACK, limit=used
    )
    told = Chart(
        series=series,
        measure=measure,
        x=tuple(x),
        noise=noise,
        sd=scale * math.sqrt(max(noise.variance, 1 / series.n) / series.n),
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
            *_single_flips(told, changed),
            *told.warnings,
            *_elsewhere(series),
        ),
    )


def _measure(series: Series) -> tuple[str, list[float]]:
    """The best measure that every run of the series has, in points, negative where worse.

    A chart that starts itself is blind to a constant: whether a reference is subtracted changes
    nothing while it is the same one. So one that was replaced on the way is left out, and its step
    is not taken for a drift.
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
    """Return sample -> score; None when the file is not there. Raises RunFolderError for a damaged
    one.
    """
    return read_values(night.run, task) if has_scores(night.run, task) else None


def _compare(series: Series) -> tuple[list[Mapping[str, float]], list[int | None], list[list[str]]]:
    """The scores of the first runs, and for each run the samples that score otherwise than in the
    run before.
    """
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


# -------------------------------------------------------------------------------------------------------------
# noise


def _noise(series: Series, first: Sequence[Mapping[str, float]]) -> Noise:
    """V from the reference's own runs, else from the first runs of the series, else the most that
    it can be.

    Scores within [lo, hi] of mean m have at most the variance (hi - m)(m - lo) (Bhatia and Davis
    2000, "A better bound on the variance"), which also bounds their variance between runs: the
    chart then alarms late, never early.
    """
    if (stored := _of_reference(series)) is not None:
        return _measure_noise(series, stored, f"the {len(stored)} runs of the reference", own=False)
    if len(first) > 1:
        names = [name for name in first[0] if all(name in scores for scores in first)]
        if names:
            rows = [[scores[name] for name in names] for scores in first]
            return _measure_noise(series, rows, f"the first {len(first)} runs", own=True)
    lo, hi, unit = series.metric.lo, series.metric.hi, series.metric.scale
    if lo is None or hi is None:
        raise RunFolderError(
            f"{series.name}: the metric has no bounds, and no two runs have scores on file to"
            " measure the noise on",
            hint="Keep the scores/ of the run folders.",
        )
    mean = math.fsum(night.value / unit for night in series.nights) / len(series.nights)
    most = max(0.0, (hi - mean) * (mean - lo))
    return Noise(
        variance=most,
        source="not measured, for want of repeated scores: the most that it can be",
        known="variance not measured: the most that it can be",
        scale=Scale(flips=max(series.n * most, 1.0) / (hi - lo) ** 2),
        measured=False,
    )


def _measure_noise(
    series: Series, rows: Sequence[Sequence[float]], runs: str, *, own: bool
) -> Noise:
    """The noise of these runs, the series' `own` or those of its reference.

    Where Cochran's Q says that they differ as a whole, v is raised to the variance between runs: by
    Q over its degrees of freedom. Of the series' own runs the differences of neighbours count
    instead, lest a decline among them hide itself.
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
        raised = f"; raised {factor} times, since these runs differ as a whole"
        warning = (
            f"{runs} differ as a whole (Cochran's Q, p {told.p:.2g}): either one of them declined,"
            " or runs vary by more than their samples do; a run's standard deviation is taken"
            f" {factor} times as large"
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
        else f", two of which disagree on {told.flip_rate:.2%} of the samples"
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
    """The scores of the runs that the reference is the mean of; None where there are no two of them
    on file.
    """
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


# ----------------------------------------------------------------------------------------------------------
# warnings


def _alarm(chart: Chart) -> list[str]:
    if not chart.alarms:
        return []
    nights, points = chart.series.nights, chart.points
    last = len(points) - 1
    if not points[last].alarm:
        seen = f"{date(nights[chart.alarms[0]])} to {date(nights[chart.alarms[-1]])}"
        return [f"a decline was seen from {seen}; by now S is not beyond {chart.limit:g} any more"]
    start = max(place for place, point in enumerate(points) if point.s == 0.0) + 1
    first = next(place for place in chart.alarms if place >= start)
    before, since = chart.x[:start], chart.x[start:]
    fall = math.fsum(before) / len(before) - math.fsum(since) / len(since)
    return [
        f"ALARM: S {points[last].s:.1f} is beyond {chart.limit:g}, first on {date(nights[first])}."
        f" The decline seems to begin on {date(nights[start])}: {fall:.3f} points worse than"
        " before, on average"
    ]


def _single_flips(chart: Chart, changed: Sequence[Sequence[str]]) -> list[str]:
    """A flip is news where there never was one: an endpoint that always gave the same answers has
    changed.
    """
    warnings, alike = [], 1
    for night, flips, names in zip(chart.series.nights, chart.flips, changed, strict=True):
        if flips and (chart.noise.variance == 0.0 or alike >= ALIKE):
            shown = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            warnings.append(
                f"serving was deterministic, and on {date(night)} {flips} samples scored another"
                f" value: {shown}"
            )
        alike = 1 if flips is None or flips else alike + 1
    return warnings


def _elsewhere(series: Series) -> list[str]:
    """Changes of the endpoint that a reader should set beside the chart."""
    warnings = []
    addresses = sorted({night.address for night in series.nights})
    if len(addresses) > 1 and not series.simulated:
        warnings.append(f"the runs come from {len(addresses)} addresses: {', '.join(addresses)}")
    for before, night in zip(series.nights, series.nights[1:], strict=False):
        if before.version != night.version:
            warnings.append(
                f"the endpoint's version went from {before.version} to {night.version} on"
                f" {date(night)}"
            )
    return warnings


def date(night: Night) -> str:
    """When a run began, to the minute, in UTC."""
    return f"{night.started_at.astimezone(UTC):%Y-%m-%d %H:%M}"
