"""Judge by a reference that was measured with fewer samples than a run, or than its task has.

The value of such a reference is less certain than that of the run. The classic test then takes the
smaller number for both sides, and every interval of the change includes the reference's own.
"""

from __future__ import annotations

import math
from dataclasses import replace

from serve_eval.schema import MEAN, Hypothesis, Reference, TaskResult
from serve_eval.stats.classic import classic_test
from serve_eval.stats.own_noise import half_width
from serve_eval.stats.wilson import INTERVAL_ALPHA, wilson


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
