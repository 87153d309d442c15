"""Compare how two endpoints served the same prompts: latency and failures, prompt by prompt.

The results are warnings, since they say nothing about the answers.
"""

from __future__ import annotations

import statistics
from collections import Counter

from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.processes.core_load import describe_busy, is_busy
from serve_eval.stats.lateness import SLOWER, lateness

ALPHA = 0.01
"""Chance of each warning for two endpoints that serve equally well."""
LATE = 3.0
"""A response is late if it takes this many times the median of its side."""
PARTS = 10
"""Number of parts of a run, in the order of its requests."""


def slower(a: TaskAnswers, b: TaskAnswers, cores_busy: float | None = None) -> str | None:
    """Return a warning if B takes more than SLOWER times as long as A for most prompts.

    The excess must be beyond chance. Applies to requests that were sent at the same time. If the
    cores of this machine were busy throughout, the line says that it is no evidence: servers that
    share them, or their client, wait for each other. Of two sound deployments, the one with more
    processes then takes longer, as a pair of vLLM on two cores does.
    """
    times = [
        (a.latency_s[prompt], b.latency_s[prompt])
        for prompt in a.latency_s
        if prompt in b.latency_s
    ]
    longer, _, p = lateness(times)
    if p > ALPHA:
        return None
    medians = [statistics.median(side) for side in zip(*times, strict=True)]
    took = f"B took {medians[1]:.3g} s per answer and A {medians[0]:.3g} s (medians)"
    if cores_busy is not None and is_busy(cores_busy):
        return f"busy_cores: {took}, {describe_busy(cores_busy)} B"
    return (
        f"slower: {took}, more than {SLOWER:g} times as long for {longer} of {len(times)}"
        f" {_name_asked(a, b)} (p = {p:.2g})"
    )


def uneven(a: TaskAnswers, b: TaskAnswers) -> str | None:
    """Return a warning if more answers of B than of A are late throughout the run.

    Late means more than LATE times the median of the same side. One slow worker among several
    causes that without moving a median.

    This is the sign test over PARTS parts of the run: in a part, more prompts are late only at B,
    or only at A, or neither. A pause, which makes all requests in flight late, falls into one part.
    """
    from serve_eval.stats.mcnemar import mcnemar

    both = sorted(
        (prompt for prompt in a.latency_s if prompt in b.latency_s), key=lambda p: b.started_s[p]
    )
    of_a, of_b = (_late([answers.latency_s[prompt] for prompt in both]) for answers in (a, b))
    surplus = [0] * PARTS
    for place in range(len(both)):
        surplus[place * PARTS // len(both)] += (place in of_b) - (place in of_a)
    more = sum(one > 0 for one in surplus)
    p = mcnemar(more, sum(one < 0 for one in surplus)).p_mid
    if p > ALPHA:
        return None
    return (
        f"uneven: {len(of_b)} of {len(both)}{_name_first(a, b)} answers of B took more than"
        f" {LATE:g} times their median, and {len(of_a)} of A; more in {more} of {PARTS} parts of"
        f" the run (p = {p:.2g}):"
        " one of several servers of B may be slow"
    )


def _name_first(a: TaskAnswers, b: TaskAnswers) -> str:
    """Return " first" if a side answered prompts several times: only first answers are compared."""
    return " first" if max(len(a.lines), len(b.lines)) > 1 else ""


def _name_asked(a: TaskAnswers, b: TaskAnswers) -> str:
    """Return the units of a count: prompts, each by its first answer."""
    return "prompts (first answers)" if _name_first(a, b) else "prompts"


def _late(times: list[float]) -> set[int]:
    """Return the positions of the times beyond LATE times the median."""
    limit = LATE * statistics.median(times) if times else 0.0
    return {place for place, time in enumerate(times) if time > limit}


def more_failures(a: TaskAnswers, b: TaskAnswers) -> str | None:
    """Return a warning if more prompts had failed requests at B than at A, beyond chance.

    A failed request counts even if a retry succeeded. McNemar's test of the prompts for which
    requests failed on only one side.
    """
    from serve_eval.stats.mcnemar import mcnemar

    only_b = [prompt for prompt in b.failed if prompt not in a.failed]
    p = mcnemar(len(only_b), sum(prompt not in b.failed for prompt in a.failed)).p_mid
    if p > ALPHA:
        return None
    kinds = Counter(b.failed.values()).most_common()
    told = ", ".join(f"{count} {kind}" for kind, count in kinds)
    return (
        f"more_failures: requests for {len(b.failed)} of {b.planned} {_name_asked(a, b)} failed at"
        f" B ({told}) and for {len(a.failed)} at A (p = {p:.2g}): prompts that a retry answered"
        " count as answered"
    )
