"""Allow for the noise of a reference that was measured with few samples or one draw.

The value of such a reference is less certain than that of the run. The classic test then takes the
smaller number for both sides, and every interval of the change includes the reference's own.

That is the flip rate between its runs, and the design effect of groups, which says how many times
the independent prompts a paired rule needs. Both are of healthy runs, before anything is asked.
"""

from __future__ import annotations

import math
from dataclasses import replace

from serve_eval.frozen import freeze
from serve_eval.schema import MEAN, Dataset, Hypothesis, Reference, Stability, TaskResult
from serve_eval.stats.classic import classic_test
from serve_eval.stats.clusters import (
    cluster_keys,
    design_effect,
    design_effect_of_runs,
    number_keys,
)
from serve_eval.stats.intervals import INTERVAL_ALPHA, half_width, wilson
from serve_eval.stats.repeats import instability
from serve_eval.verdicts.pairing import read_stored_runs

USUAL_FLIP_RATE = 0.034
"""Share of prompts on which two greedy runs of one endpoint disagree, if none was measured."""


def hold_n(
    hypothesis: Hypothesis, reference: Reference | None, asked: int
) -> tuple[Hypothesis, tuple[str, ...]]:
    """Return the parameters with the n of a reference that has fewer samples, and a warning.

    The test takes n for both sides, so that this errs towards PASS: the standard error would be
    sqrt(sigma^2 / asked + sigma^2 / n), which is less than sqrt(2 sigma^2 / n).
    """
    known = None if reference is None or reference.runs is None else reference.runs.n
    if known is None or hypothesis.num_samples is None or known >= hypothesis.num_samples:
        return hypothesis, ()
    half = half_width(hypothesis.sigma, known)
    doubt = f"its own value is uncertain by ±{half:.1f} points, and " if half else ""
    warning = (
        f"the reference has {known} of these {asked} samples: {doubt}the run is judged with"
        f" n = {known}"
    )
    return replace(hypothesis, num_samples=known), (warning,)


def keep_named(
    named: object, hypothesis: Hypothesis, reference: Reference | None
) -> tuple[int, Hypothesis, tuple[str, ...]]:
    """Return the number of samples to ask, the parameters, and a note if a reference has another.

    The size that the user `named` for the task decides what is asked. The n of the reference
    remains that of the test unless fewer are asked.
    """
    n = hypothesis.num_samples
    assert n is not None
    registered = None if reference is None else reference.num_samples
    if not isinstance(named, int) or registered in (None, named):
        return n, hypothesis, ()
    held = min(named, n)
    note = (
        f"num_samples {named} was asked for, and the reference has {registered}: {named} samples"
        f" are asked and judged with n = {held}"
    )
    return named, replace(hypothesis, num_samples=held), (note,)


def describe_few(known: int, usual: int | None, hypothesis: Hypothesis) -> str | None:
    """Return a warning about a reference with fewer samples than its task's own number."""
    if usual is None or known >= usual:
        return None
    h = hypothesis
    theta = classic_test(known, 0.0, h.sigma, h.alpha, h.beta).theta
    detects = f": detects only drops of {theta:.1f} points or more" if theta else ""
    return f"{known} of {usual} samples{detects}"


def find_interval(result: TaskResult, reference: Reference) -> tuple[float, float] | None:
    """Return the 95 % interval of a reference's value, None if its samples are not known.

    The value of a subset has the number of its prompts. Runs of the same prompts are no further
    prompts. Of a value that is no mean of scores with a range, the spread is the run's own.
    """
    if reference.runs is None:
        return None
    prompts = result.planned // (1 if result.stability is None else result.stability.repeats)
    n, metric, value = min(reference.runs.n, prompts), result.metric, reference.value
    if result.aggregation == MEAN.name and metric.lo is not None and metric.hi is not None:
        span = metric.hi - metric.lo
        share = (value / metric.scale - metric.lo) / span
        ends = wilson(n * min(1.0, max(0.0, share)), n, INTERVAL_ALPHA)
        low, high = (metric.scale * (metric.lo + span * end) for end in ends)
        return low, high
    if result.interval is None or result.value is None:
        return None
    wider = math.sqrt(prompts / n)
    below, above = result.value - result.interval[0], result.interval[1] - result.value
    return value - wider * below, value + wider * above


def describe_one_draw(stability: Stability | None) -> str | None:
    """Return why the repeats of a task are no independent draws; None if they may be.

    They are none if all answers to each prompt are the same text.
    """
    if stability is None or stability.identical is None:
        return None
    if not 0 < stability.prompts <= stability.identical:
        return None
    if stability.temperature == 0:
        why, then = "at temperature 0 a server may choose alike each time", "sample to see a spread"
    else:
        why = "the server may ignore or repeat its seed, or keep its replies"
        then = "make it draw each time"
    return (
        f"one_draw: the {stability.repeats} answers to each of {stability.prompts} prompts are the"
        f" same text: {why}; the repeats are one draw, so that their spread of"
        f" {stability.sd:.1f} measures no uncertainty; {then}"
    )


def describe_one_seed(runs: int, seed: int | None, temperature: float | None) -> str | None:
    """Return why the runs of a reference are one draw by their seed; None if they may be several.

    `runs` counts run folders: the repeats of one run have seeds of their own. At temperature 0
    nothing is drawn, so that equal runs are no fault.
    """
    if runs < 2 or seed is None or temperature == 0:
        return None
    return (
        f"one_draw: each of the {runs} runs has sampling seed {seed}: they are no independent"
        " draws, and the reference looks more stable than it is; take it without a seed"
        " (protocol.seed, TASK.seed), or from one run with --repeats, which have"
        " seeds of their own"
    )


def describe_equal_runs(
    runs: int, prompts: int, identical: int, temperature: float | None
) -> str | None:
    """Return why runs with the same texts are one draw; None if they differ or draw nothing."""
    if runs < 2 or temperature == 0 or not 0 < prompts <= identical:
        return None
    return (
        f"one_draw: the answers of the {runs} runs to each of {prompts} prompts are the same text:"
        " the server may repeat its seed or keep its replies; the runs are one draw, and the"
        " reference looks more stable than it is; make the server draw each time"
    )


@freeze
class ReferenceNoise:
    """The noise of a reference over the prompts of a data set.

    `groups` is the number of groups (None: no two prompts share one), `effect` their design effect:
    on the difference of two healthy runs, or on the value if there is one run. `flip_rate` is the
    share of prompts on which two runs disagree; None for one run, and for scores between right and
    wrong.
    """

    prompts: int
    runs: int
    groups: int | None
    effect: float
    flip_rate: float | None

    @property
    def source(self) -> str:
        """The words for where the effect is from."""
        return f"of the reference's {self.runs} runs" if self.runs > 1 else "of the reference's run"


def measure_noise(dataset: Dataset, reference: Reference) -> ReferenceNoise | None:
    """Return the noise of a reference over a data set; None if it has no scores of the prompts."""
    import numpy

    if (stored := read_stored_runs(dataset, reference)) is None:
        return None
    runs, lo, hi = stored
    rows = numpy.array(runs)
    if not numpy.isfinite(rows).all():
        return None
    keys = cluster_keys([sample.group for sample in dataset.samples])
    groups, effect = None, 1.0
    if keys is not None:
        codes = number_keys(keys)
        groups = len(set(codes.tolist()))
        changing = len(rows) > 1 and bool((rows != rows[0]).any())
        effect = (
            design_effect_of_runs(rows, codes)
            if changing
            else design_effect(rows.mean(axis=0), codes)
        )
    right_or_wrong = len(rows) > 1 and bool(numpy.isin(rows, (lo, hi)).all())
    return ReferenceNoise(
        prompts=rows.shape[1],
        runs=len(rows),
        groups=groups,
        effect=effect,
        flip_rate=instability([list(run) for run in runs]).flip_rate if right_or_wrong else None,
    )
