"""The drift chart of one series of runs: in which unit it is measured, how noisy a run is, where a decline shows.

The chart is the self-starting cumulative sum of `stats.drift`. It only warns.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path

import msgspec

from serve_eval import reference_samples
from serve_eval.errors import ReferenceFileError, RunFolderError
from serve_eval.history import Night, Series
from serve_eval.schema import file_stem
from serve_eval.stats.drift import LIMIT, SLACK, DriftPoint, drift
from serve_eval.stats.instability import instability

STARTING_RUNS = 10
"""Runs of the series itself that its noise is measured on: the first ones, so that later nights leave it as it is."""
ALIKE = 3
"""Runs in a row without a single flip from which on serving counts as deterministic."""
UNEQUAL = 0.01
"""p of Cochran's Q below which runs differ as a whole, and not prompt by prompt."""
PAIRED, TO_REFERENCE, VALUE = "paired difference to the reference", "value minus reference", "value"


class _Score(msgspec.Struct):
    id: str
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """The run variance v, in squared units of a sample's score, and what it is known from."""

    variance: float
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """One series charted. `x` (points, negative is worse) is what `measure` says; `flips` counts the samples that score
    another value than in the run before (None: a run has no scores on file); `sd` is the standard deviation of one
    run's value in points, at least that of a single flip."""

    series: Series
    measure: str
    x: tuple[float, ...]
    noise: Noise
    sd: float
    flips: tuple[int | None, ...]
    points: tuple[DriftPoint, ...]
    limit: float
    warnings: tuple[str, ...]

    @property
    def alarms(self) -> list[int]:
        """Places of the runs at which the sum is beyond the limit."""
        return [place for place, point in enumerate(self.points) if point.alarm]


def chart(series: Series, *, limit: float = LIMIT) -> Chart:
    """The chart of a series. Raises RunFolderError for scores that cannot be read or a metric without bounds of which
    nothing tells the noise, ServeEvalError for a limit that is not above 0."""
    measure, x = _measured(series)
    first, flips, changed = _compare(series)
    noise, notes = _noise(series, first)
    scale = abs(series.metric.scale)
    points = drift([value / scale for value in x], noise.variance, series.n, slack=SLACK, limit=limit)
    told = Chart(
        series=series,
        measure=measure,
        x=tuple(x),
        noise=noise,
        sd=scale * math.sqrt(max(noise.variance, 1 / series.n) / series.n),
        flips=tuple(flips),
        points=tuple(points),
        limit=limit,
        warnings=tuple(notes),
    )
    return replace(told, warnings=(*_alarm(told), *_single_flips(told, changed), *notes, *_elsewhere(series)))


def _measured(series: Series) -> tuple[str, list[float]]:
    """The best measure that every run of the series has, in points, negative where worse.

    A chart that starts itself is blind to a constant: whether a reference is subtracted changes nothing while it is the
    same one. So one that was replaced on the way is left out, and its step is not taken for a drift.
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
    """Sample -> score; None when the file is not there. Raises RunFolderError for a damaged one."""
    path = night.run / "scores" / f"{file_stem(task)}.jsonl"
    try:
        return {line.id: line.value for line in _decoder.decode_lines(path.read_bytes())}
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError) as error:
        raise RunFolderError(
            f"{path} cannot be read: {error}", hint=f"It is made anew by: serve-eval verdict {night.run}"
        ) from error


_decoder = msgspec.json.Decoder(_Score)


def _compare(series: Series) -> tuple[list[Mapping[str, float]], list[int | None], list[list[str]]]:
    """The scores of the first runs, and for each run the samples that score otherwise than in the run before."""
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
            name for name, value in (scores or {}).items() if known and before and before.get(name, value) != value
        ]
        flips.append(len(names) if known else None)
        changed.append(names)
        before = scores
    return first, flips, changed


# ------------------------------------------------------------------------------------------------------------- noise


def _noise(series: Series, first: Sequence[Mapping[str, float]]) -> tuple[Noise, list[str]]:
    """v from the reference's own runs, else from the first runs of the series, else the most that it can be.

    Scores within [lo, hi] of mean m have at most the variance (hi - m)(m - lo) (Bhatia and Davis 2000, "A better bound
    on the variance"), which also bounds their variance between runs: the chart then alarms late, never early.
    """
    if (noise := _of_reference(series)) is not None:
        return noise, []
    if len(first) > 1:
        names = [name for name in first[0] if all(name in scores for scores in first)]
        if names:
            told = instability([[scores[name] for name in names] for scores in first])
            rate = "" if told.flip_rate is None else f", two of which disagree on {told.flip_rate:.2%} of the samples"
            source = f"measured on the first {len(first)} runs{rate}"
            odd = []
            if told.p is not None and told.p < UNEQUAL:
                odd = [
                    f"the first {len(first)} runs differ as a whole (Cochran's Q, p {told.p:.2g}): either one of them "
                    "declined, or runs vary by more than their samples do and alarms come early"
                ]
            return Noise(variance=told.variance, source=source), odd
    lo, hi, scale = series.metric.lo, series.metric.hi, series.metric.scale
    if lo is None or hi is None:
        raise RunFolderError(
            f"{series.name}: the metric has no bounds, and no two runs have scores on file to measure the noise on",
            hint="Keep the scores/ of the run folders.",
        )
    mean = math.fsum(night.value / scale for night in series.nights) / len(series.nights)
    most = max(0.0, (hi - mean) * (mean - lo))
    return Noise(variance=most, source="not measured, for want of repeated scores: the most that it can be"), []


def _of_reference(series: Series) -> Noise | None:
    """What the runs disagreed by that the reference is the mean of; None where there are no two of them on file."""
    for night in reversed(series.nights):
        found = night.reference
        if found is None or found.runs is None or len(found.runs.values) < 2:
            continue
        try:
            stored = reference_samples.read(Path(found.file).parent / found.runs.samples, found.runs.sha256)
        except ReferenceFileError:
            continue
        told = instability([list(run) for run in stored.runs])
        return Noise(variance=told.variance, source=f"measured on the {told.runs} runs of the reference")
    return None


# ---------------------------------------------------------------------------------------------------------- warnings


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
        f"ALARM: S {points[last].s:.1f} is beyond {chart.limit:g}, first on {date(nights[first])}. The decline seems "
        f"to begin on {date(nights[start])}: {fall:.3f} points worse than before, on average"
    ]


def _single_flips(chart: Chart, changed: Sequence[Sequence[str]]) -> list[str]:
    """A flip is news where there never was one: an endpoint that always gave the same answers has changed."""
    warnings, alike = [], 1
    for night, flips, names in zip(chart.series.nights, chart.flips, changed, strict=True):
        if flips and (chart.noise.variance == 0.0 or alike >= ALIKE):
            shown = f"{', '.join(names[:3])}{', ...' if len(names) > 3 else ''}"
            warnings.append(
                f"serving was deterministic, and on {date(night)} {flips} samples scored another value: {shown}"
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
            warnings.append(f"the endpoint's version went from {before.version} to {night.version} on {date(night)}")
    return warnings


def date(night: Night) -> str:
    """When a run began, to the minute, in UTC."""
    return f"{night.started_at.astimezone(UTC):%Y-%m-%d %H:%M}"
