"""Answer questions about power: sizes by n, the size for theta, and each rule's power.

The sums are exact for right/wrong scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from serve_eval.frozen import freeze
from serve_eval.stats.classic import classic_test, num_samples_for, power_table
from serve_eval.stats.finding import MIN_UNITS
from serve_eval.stats.planning import (
    classic_power,
    compute_paired_power,
    find_least_drop,
    num_failing_for,
    num_noninferior_for,
    num_pairs_for,
)
from serve_eval.workflows.power.assumed import Assumed, assume, measure_run
from serve_eval.workflows.power.question import PowerQuestion

if TYPE_CHECKING:
    from serve_eval.stats.classic import ClassicTest
    from serve_eval.workflows.power.assumed import Measured

DROPS = (0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0)
"""Drops in points for which the power is shown."""
CLASSIC, PAIRED, PAIRED_FAIL, EXCLUDED = "classic", "paired", "paired FAIL", "noninferiority"
"""Names of the rules and their outcomes."""


@freeze
class SizeRow:
    """The power of n samples: all but n are in points.

    `theta` and the `threshold` less the reference are those of the classic rule. `proven` and
    `failed` are the least drops that the paired rule proves, and fails, with the wanted chance
    (None: no drop is large enough).
    """

    n: int
    theta: float
    threshold: float
    proven: float | None
    failed: float | None


@freeze
class ThetaSize:
    """The smallest n for a theta of the classic rule, and the row of the table that has it."""

    theta: float
    n: int
    row: int


@freeze
class Needed:
    """The samples that a rule needs, and what they do.

    `n` None: no number does. `seconds` are those at the throughput of the run (None: not known).
    """

    rule: str
    n: int | None
    purpose: str
    seconds: float | None


@freeze
class DropRow:
    """The chances that a drop in points is FAIL, proven and FAIL by pairs."""

    drop: float
    classic: float
    proven: float
    failed: float


@freeze
class Detection:
    """The samples for a drop in points, and the power by drop with `n`, those of the proof.

    `margin` is that of the paired rule with n samples, in points.
    """

    drop: float
    n: int
    margin: float
    needed: Sequence[Needed]
    rows: Sequence[DropRow]


@freeze
class TaskPower:
    """The answers for a task of a run, or for any task: then `task` is "" and `measured` None.

    `at` is the row of the samples that were named, or of those of the run, and `sizes` is the table
    of smaller numbers too.
    """

    task: str
    measured: Measured | None
    assumed: Assumed
    at: SizeRow | None
    sizes: Sequence[SizeRow]
    theta: ThetaSize | None
    detection: Detection | None


def answer(asked: PowerQuestion) -> list[TaskPower]:
    """Answer a question, for each task of a run if one is given.

    Raises PlanError for numbers out of range, and RunFolderError as `measure_run` does.
    """
    asked.check()
    if asked.from_run is None:
        return [_answer(asked, None)]

    return [_answer(asked, one) for one in measure_run(asked.from_run)]


def _answer(asked: PowerQuestion, one: Measured | None) -> TaskPower:
    planned = assume(asked, one)
    sizes = [] if asked.total is None else _list_sizes(asked.total, planned)
    at = sizes[-1] if sizes else None
    if at is None and one is not None:
        test = classic_test(one.n, 0.0, planned.sigma, planned.alpha, planned.beta)
        at = _find_size(one.n, test, planned)
    return TaskPower(
        task="" if one is None else one.task,
        measured=one,
        assumed=planned,
        at=at,
        sizes=sizes,
        theta=None if asked.theta is None else _find_theta(asked.theta, planned),
        detection=None
        if asked.detect is None
        else _detect(asked.detect, planned, None if one is None else one.per_second),
    )


def _list_sizes(total: int, planned: Assumed) -> list[SizeRow]:
    """Return the table by n."""
    table = power_table(total, planned.sigma, planned.alpha, planned.beta)
    return [_find_size(n, test, planned) for n, test in table]


def _find_size(n: int, test: ClassicTest, planned: Assumed) -> SizeRow:
    """Return the row of n, with the least drops that the paired rule proves and fails."""
    rate, beta = planned.flips, 1.0 - planned.power
    proven = find_least_drop(planned.count_independent(n), rate, planned.proof, beta)
    failed = find_least_drop(n, rate, planned.alpha, beta, planned.fail)
    return SizeRow(
        n=n,
        theta=test.theta,
        threshold=test.threshold,
        proven=None if proven is None else 100 * proven,
        failed=None if failed is None else 100 * failed,
    )


def _find_theta(theta: float, planned: Assumed) -> ThetaSize:
    """Return the smallest n for a theta, with its row of the table."""
    sigma, alpha, beta = planned.sigma, planned.alpha, planned.beta
    n = num_samples_for(theta, sigma, alpha, beta)
    row = next(size for size, _ in power_table(64 * n, sigma, alpha, beta) if size >= n)
    return ThetaSize(theta=theta, n=n, row=row)


def count_pairs(drop: float, planned: Assumed) -> int:
    """Return the samples with which the paired rule proves a drop in points."""
    n = num_pairs_for(drop / 100, planned.flips, planned.proof, 1.0 - planned.power)
    return planned.count_needed(max(n, MIN_UNITS))


def _detect(drop: float, planned: Assumed, per_second: float | None) -> Detection:
    """Return the samples that each rule needs for a drop, and the power with those of the proof."""
    n = count_pairs(drop, planned)
    return Detection(
        drop=drop,
        n=n,
        margin=planned.find_margin(n),
        needed=[
            Needed(
                rule=rule,
                n=size,
                purpose=purpose,
                seconds=None if None in (size, per_second) else (size or 0) / (per_second or 1.0),
            )
            for rule, size, purpose in _list_needed(drop, n, planned)
        ],
        rows=list(_list_power(drop, n, planned)),
    )


def _list_needed(drop: float, n: int, planned: Assumed) -> Iterator[tuple[str, int | None, str]]:
    """Yield a rule, the samples that it needs and what these do."""
    rate, alpha, beta, share = planned.flips, planned.alpha, 1.0 - planned.power, drop / 100
    size = num_samples_for(drop, planned.sigma, alpha, beta)
    yield CLASSIC, size, "as theta, each side on its own prompts"
    yield PAIRED, n, "to prove the drop"
    margin = None if planned.margin is None else planned.margin / 100
    fails = num_failing_for(
        share, rate, alpha, beta, margin, sigma=planned.sigma / 100, tests=planned.tests
    )
    if fails is None:
        yield PAIRED_FAIL, None, f"to FAIL: more exclude {planned.margin:g} points"
    else:
        fails = planned.count_needed(fails)
        points = planned.find_margin(fails)
        yield PAIRED_FAIL, fails, f"to FAIL at a margin of {points:.4g} points"
    pairs = num_noninferior_for(share, planned.flip_rate, alpha, beta)
    needed = planned.count_needed(max(math.ceil(pairs / planned.repeats), MIN_UNITS))
    yield EXCLUDED, needed, "to exclude it if there is none"


def _list_power(drop: float, n: int, planned: Assumed) -> Iterator[DropRow]:
    """Yield the power by drop with n samples."""
    rate, alpha = planned.flips, planned.alpha
    for points in sorted({*DROPS, drop}):
        share = points / 100
        if share + rate <= 1.0:
            yield DropRow(
                drop=points,
                classic=classic_power(share, n, rate, alpha, planned.sigma / 100),
                proven=compute_paired_power(
                    share, planned.count_independent(n), rate, planned.proof
                ),
                failed=planned.fail(share, n, rate, alpha),
            )
