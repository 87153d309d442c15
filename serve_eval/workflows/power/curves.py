"""Compute the curves of --plot: the chance of noticing a drop, by verdict rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from serve_eval.report.plots import LevelLine, Panel, PlotLine
from serve_eval.stats.classic import classic_test, num_samples_for
from serve_eval.stats.planning import (
    classic_power,
    compute_fail_power,
    compute_paired_power,
    noninferiority_power,
)
from serve_eval.workflows.power.answers import TaskPower
from serve_eval.workflows.power.assumed import Assumed, PowerQuestion

USUAL_MARGIN = 1.0
"""Margin in points of the non-inferiority rule, unless one is given."""
STEPS = 100
"""Drops of a curve."""


def count_drawn(asked: PowerQuestion, one: TaskPower) -> int:
    """Return the samples of a panel: those that were named, of the run, or for the drop."""
    if asked.total is not None:
        return asked.total
    if one.at is not None:
        return one.at.n
    if one.detection is not None:
        return one.detection.n
    assert asked.theta is not None
    planned = one.assumed
    return num_samples_for(asked.theta, planned.sigma, planned.alpha, planned.beta)


def make_panels(asked: PowerQuestion, found: Sequence[TaskPower]) -> list[Panel]:
    """Return a panel for each task."""
    panels = []
    for one in found:
        panel = _make_panel(count_drawn(asked, one), asked, one.assumed)
        several = bool(one.task) and len(found) > 1
        panels.append(replace(panel, title=f"{one.task}: {panel.title}") if several else panel)
    return panels


def _make_panel(n: int, asked: PowerQuestion, planned: Assumed) -> Panel:
    """Return the chance of noticing a drop with n samples, by verdict rule.

    The drops range from zero to one that the classic rule nearly always notices.
    """
    detect, alpha, flip_rate = asked.detect, planned.alpha, planned.flip_rate
    limit = detect or USUAL_MARGIN
    matters = planned.find_margin(n)
    widest = 1.3 * classic_test(n, 0.0, planned.sigma, alpha, 0.2).theta
    end = min(100.0 * (1.0 - flip_rate), max(widest, 2.0 * limit))
    drops = [end * i / STEPS for i in range(STEPS + 1)]
    shares = [drop / 100 for drop in drops]
    alone = planned.count_independent(n)
    classic = [classic_power(drop, n, flip_rate, alpha, planned.sigma / 100) for drop in shares]
    paired = [compute_paired_power(drop, alone, flip_rate, planned.proof) for drop in shares]
    failed = [
        compute_fail_power(drop, alone, flip_rate, alpha, matters / 100, tests=planned.tests)
        for drop in shares
    ]
    excluded = [
        noninferiority_power(limit / 100, alone, flip_rate, alpha, drop=drop) for drop in shares
    ]
    levels = [
        LevelLine(label=f"wanted: {planned.power:g}", at=planned.power),
        LevelLine(label=f"alpha: {alpha:g}", at=alpha),
    ]
    if detect is not None:
        label = f"drop to detect: {detect:g} points"
        levels.append(LevelLine(label=label, at=detect, upright=True))
    about = f"flip rate {flip_rate:g}, sigma {planned.sigma:g} points, alpha {alpha:g}"
    return Panel(
        title=f"{n} samples, {about}",
        x_label="true drop (points)",
        y_label="probability of detection",
        lines=[
            PlotLine(label="classic: the verdict is FAIL", x=drops, y=classic),
            PlotLine(label="paired: a drop is proven", x=drops, y=paired),
            PlotLine(
                label=f"paired: the verdict is FAIL\n(margin {matters:.4g} points)",
                x=drops,
                y=failed,
            ),
            PlotLine(
                label=f"noninferiority: a drop of\n{limit:g} points is not excluded",
                x=drops,
                y=[1.0 - chance for chance in excluded],
            ),
        ],
        levels=levels,
        y_range=(-0.02, 1.02),
    )
