"""Measure the noise of a series of runs."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from serve_eval.errors import ReferenceFileError, RunFolderError
from serve_eval.series.history import Series
from serve_eval.stats.false_alarms import Scale, measure_scale
from serve_eval.stats.instability import instability, successive_dispersion
from serve_eval.verdicts import reference_samples

STARTING_RUNS = 10
"""Runs of the series that its noise is measured on. These are the first ones, so that later runs do
not change it."""
UNEQUAL = 0.01
"""p of Cochran's Q below which runs differ as a whole, and not only in single prompts."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
