"""Write the answers to repeated prompts on one line, as people publish them. Pure."""

from __future__ import annotations

import math

from serve_eval.schema import Metric, PairedComparison, Stability, TaskResult

POINTS = 100.0
"""Scale of a metric whose values are points out of 100."""
MOST_SHOWN = 5
"""Number of repeats from which pass@k is shown for powers of two and for all repeats only."""
SHOWN_WIDTH = 0.005
"""Width of the bounds of pass@k, in points, from which they are shown."""


def describe_repeats(result: TaskResult) -> str:
    """Return avg@k with its standard errors, pass@k, the vote, and the answers that are lacking.

    "avg@16 = 78.96 ± 5.1 (SE by question; ± .30 over runs), pass@16 = 93.3, maj@16 = 86.7,
    unanswered 2.1 %, cut 4 of 480". Bounds in brackets have all missing answers wrong, and right.
    The result must have repeats.
    """
    told = result.stability
    assert told is not None
    said = [_describe_value(result, told)]
    last = str(told.repeats)
    if last in told.pass_at:
        low, high = told.pass_bounds.get(last, (told.pass_at[last],) * 2)
        between = f" ({low:.1f} to {high:.1f})" if high - low >= SHOWN_WIDTH else ""
        said.append(f"pass@{last} = {told.pass_at[last]:.1f}{between}")
    if told.majority is not None:
        of = ""
        if told.voted is not None and told.asked is not None:
            few = told.voted * told.repeats < told.asked
            of = f" of {told.voted} prompts" if few else ""
        said.append(f"maj@{last} = {_number(told.majority, result.metric, 1)}{of}")
    asked = max(1, result.planned - result.spared)
    said.append(f"unanswered {_percent(result.unanswered / asked)}")
    said.append(f"cut {result.cut_answers or result.truncated:,} of {asked:,}")
    return ", ".join(said)


def describe_agreement(told: Stability) -> str:
    """Return how far the repeats agree, pass@k of fewer answers, and the ties of the vote."""
    said = [f"a run's value varies by {told.sd:.2f} points (sd)"]
    if told.flip_rate is not None and told.mixed is not None:
        said.append(
            f"two repeats disagree on {told.flip_rate:.1%} of the prompts; {told.mixed:.1%} were"
            " right in some repeats and wrong in others"
        )
    if told.cochran_q is not None and told.p is not None:
        said.append(f"Cochran's Q {told.cochran_q:.2f} ({told.df} df, p {told.p:.3f})")
    if told.pass_at:
        said.append(_passes(told))
    if told.tied:
        said.append(
            f"{told.tied} of {told.voted} prompts tied: the mean of the leading answers counts"
        )
    return "; ".join(said)


def _describe_value(result: TaskResult, told: Stability) -> str:
    """Return the mean of the repeats with its two standard errors, or another value with its sd."""
    shown = "-" if result.value is None else _number(result.value, result.metric, 2)
    if result.failed and result.bounds is not None:
        low, high = (_number(end, result.metric, 1) for end in result.bounds)
        shown += f" ({low} to {high})"
    if told.se is None or told.se_runs is None:
        return f"value of {told.repeats} repeats = {shown} (sd of one: {_error(told.sd)})"
    return (
        f"avg@{told.repeats} = {shown} ± {_error(told.se)} (SE by question;"
        f" ± {_error(told.se_runs)} over runs)"
    )


def _number(value: float, metric: Metric, decimals: int) -> str:
    """Return a value in points with some decimals, and another one with four digits."""
    return f"{value:.{decimals}f}" if metric.scale == POINTS else f"{value:.4g}"


def _error(value: float) -> str:
    """Return a standard error with two digits and at most two decimals, without a leading zero."""
    if value <= 0.0:
        return "0"
    decimals = min(2, max(0, 1 - math.floor(math.log10(value))))
    return f"{value:.{decimals}f}".removeprefix("0") or "0"


def _percent(share: float) -> str:
    return "0 %" if share == 0.0 else f"{100.0 * share:.1f} %"


def _passes(told: Stability) -> str:
    """Return pass@k of some k, with what the missing answers allow."""
    shown = []
    for k, value in told.pass_at.items():
        if told.repeats > MOST_SHOWN and int(k) != told.repeats and int(k).bit_count() != 1:
            continue
        low, high = told.pass_bounds.get(k, (value, value))
        between = f" ({low:.2f} to {high:.2f})" if high - low >= SHOWN_WIDTH else ""
        shown.append(f"pass@{k} {value:.2f}{between}")
    return ", ".join(shown) + _coverage(told)


def _coverage(told: Stability) -> str:
    """Return how many answers pass@k is of, if any are missing."""
    if told.answered == told.asked:
        return ""
    return (
        f" from {told.answered} of {told.asked} answers (in brackets: with all missing ones wrong,"
        " and right)"
    )


def count_turned(paired: PairedComparison) -> str:
    """Return how many answers turned wrong or right, and among how many with several to a prompt.

    A file of an earlier version does not say among how many: its counts are of the first answers.
    """
    said = f"{paired.down} turned wrong, {paired.up} turned right"
    runs = paired.reference_runs, paired.candidate_runs
    if max(runs) == 1:
        return said
    if paired.answer_pairs is None:
        return f"{said}, of the first answers"
    of = f"{said} of {paired.answer_pairs} pairs of answers"
    least = "the first" if min(runs) == 1 else f"the first {min(runs)}"
    return of if runs[0] == runs[1] else f"{of}, {least} of {max(runs)} repeats"
