"""Run `serve-eval power`: compute detectable drops by sample size, and the reverse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from serve_eval.report.plots import Panel
    from serve_eval.workflows.measured import Measured

USUAL_FLIP_RATE = 0.034
"""Share of prompts on which two greedy runs of one endpoint disagree, if none was measured."""
USUAL_MARGIN = 1.0
"""Margin in points of the non-inferiority rule, unless one is given."""
USUAL_SIGMA = 50.0
"""Standard deviation of the classic test in points, unless a reference or a task sets another."""
CURVE_STEPS = 100


def power(
    total: Annotated[
        int | None, typer.Option(help="Samples in the data set: print the table by n.")
    ] = None,
    theta: Annotated[
        float | None,
        typer.Option(help="Minimum detectable effect in points: print the smallest n."),
    ] = None,
    detect: Annotated[
        float | None,
        typer.Option(help="Drop in points to detect: print n for each verdict rule."),
    ] = None,
    probability: Annotated[
        float, typer.Option("--power", help="Probability of detecting that drop.")
    ] = 0.8,
    flip_rate: Annotated[
        float | None,
        typer.Option(
            help=(
                "Share of prompts on which two runs of one endpoint disagree (about 0.19 with"
                " sampling). Default: that of --from, by its repeats, else by the runs of its"
                " reference, else against its reference; without any, 0.034."
            ),
            show_default=False,
        ),
    ] = None,
    from_run: Annotated[
        Path | None,
        typer.Option(
            "--from", help="Run folder whose spread, flips and throughput to use, task by task."
        ),
    ] = None,
    sigma: Annotated[
        float | None,
        typer.Option(
            help=(
                "Standard deviation of a sample's score in points, for the classic rule. Default:"
                " with --from that which judged the run, else the measured one; without, 50."
            ),
            show_default=False,
        ),
    ] = None,
    alpha: Annotated[
        float, typer.Option(help="Probability of failing an unchanged endpoint.")
    ] = 0.05,
    beta: Annotated[
        float, typer.Option(help="Probability of passing an endpoint that is theta points worse.")
    ] = 0.2,
    margin: Annotated[
        float | None,
        typer.Option(
            help=(
                "Margin in points of the paired rule, which fails a proven drop only if one of the"
                " margin is not excluded. Default: that of the rule, the classic margin at n."
            ),
            show_default=False,
        ),
    ] = None,
    tests: Annotated[
        int,
        typer.Option(
            min=1,
            help=(
                "Paired tests of a suite: Holm's correction asks at most alpha / N of a proof. The"
                " figures are those of the worst rank."
            ),
        ),
    ] = 1,
    design_effect: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help=(
                "Factor on the variance of the paired rules if prompts share groups: 1 + (m - 1) r"
                " for groups of m prompts, such as questions on a passage, whose changes have the"
                " correlation r. Default: that of --from, by the runs of its reference, else by its"
                " changes against the reference; without any, 1."
            ),
            show_default=False,
        ),
    ] = None,
    repeats: Annotated[
        int,
        typer.Option(min=1, help="Answers to each prompt on both sides, as with run --repeats."),
    ] = 1,
    plot: Annotated[
        Path | None,
        typer.Option(
            help=(
                "Draw power against drop into this .svg, .png or .pdf file (needs the extra plots)."
            )
        ),
    ] = None,
) -> None:
    """Compute the drop that n samples can detect, or the samples that a drop takes.

    Give at least one of --total, --theta, --detect and --from.
    """
    from serve_eval.cli._power_tables import Planned, find_size, list_rules, list_sizes
    from serve_eval.cli._streams import emit
    from serve_eval.errors import PlanError

    if plot is not None:
        from serve_eval.report.plots import check_plot

        check_plot(plot)
    _check(total, theta, detect, from_run, margin)
    if plot is not None and repeats > 1:
        raise PlanError("--plot draws the power of one answer a side: leave out --repeats")
    found = _measure_tasks(from_run)
    lines: list[str] = []
    for one in found:
        spread, whose = _choose_sigma(sigma, one)
        flips, how = _choose_flip_rate(flip_rate, one)
        lines += ["", _spread(one), whose, how] if one is not None else []
        planned = Planned(
            flip_rate=flips, sigma=spread, alpha=alpha, beta=beta, power=probability,
            margin=margin, tests=tests, repeats=repeats,
            design_effect=_choose_design_effect(design_effect, one),
            effect_of=None if one is None or design_effect is not None else one.effect_of,
        )  # fmt: skip
        if total is not None:
            lines += list_sizes(total, planned)
        if theta is not None:
            lines += find_size(theta, planned)
        if detect is not None:
            lines += list_rules(detect, planned, None if one is None else one.per_second)
    if plot is None:
        emit("\n".join(lines).strip("\n") + "\n")
        return
    from serve_eval.cli._page import save_plot

    panels, sizes = [], []
    for one in found:
        n = total if one is None else total or one.n
        spread, _ = _choose_sigma(sigma, one)
        flips, _ = _choose_flip_rate(flip_rate, one)
        effect = _choose_design_effect(design_effect, one)
        n = n or _compute_needed(detect, theta, probability, flips, spread, alpha, beta, effect)
        panel = _curves(n, detect, probability, flips, spread, alpha, margin, tests, effect)
        named = f"{one.task}: {panel.title}" if one and len(found) > 1 else panel.title
        panels.append(replace(panel, title=named))
        sizes.append(str(n))
    emit("\n".join(lines).strip("\n") + "\n")
    save_plot(lambda: panels, plot, f"power against drop with {', '.join(sizes)} samples")


def _check(
    total: int | None,
    theta: float | None,
    detect: float | None,
    from_run: Path | None,
    margin: float | None,
) -> None:
    """Raise PlanError if nothing is asked, or for a number that is out of range."""
    from serve_eval.errors import PlanError

    if total is None and theta is None and detect is None and from_run is None:
        raise PlanError(
            "give at least one of --total N, --theta POINTS, --detect POINTS and --from RUN"
        )
    if margin is not None and not 0.0 < margin < math.inf:
        raise PlanError(f"--margin must be above 0 and finite, in points, not {margin:g}")
    if total is not None and total < 1:
        raise PlanError(f"--total must be 1 or more, not {total}")


def _measure_tasks(run: Path | None) -> Sequence[Measured | None]:
    """Return the measurements of the tasks of a run; without a run, one None."""
    if run is None:
        return (None,)
    from serve_eval.workflows.measured import measure_run

    return measure_run(run)


def _choose_sigma(given: float | None, one: Measured | None) -> tuple[float, str]:
    """Return the sigma to plan the classic rule with, and a line about where it is from.

    The rule judges by the sigma of its reference or task, not by that of the run.
    """
    if given is not None:
        return given, f"sigma {given:g}, as given"
    if one is None:
        return USUAL_SIGMA, ""
    if one.judged_by is not None:
        other = "" if not one.sigma else f"; the measured {one.sigma:.3f} judges nothing"
        return one.judged_by, (
            f"sigma {one.judged_by:.5g}, by which the classic rule judged this run: that of its"
            f" reference{other}"
        )
    if not one.sigma:
        return USUAL_SIGMA, f"sigma {USUAL_SIGMA:g}, the default: the run shows no spread"
    return one.sigma, (
        f"sigma {one.sigma:.5g}, measured: a reference that is registered from this run sets it;\n"
        f"  against one without a sigma the classic rule judges with {USUAL_SIGMA:g}"
    )


def _choose_flip_rate(given: float | None, one: Measured | None) -> tuple[float, str]:
    """Return the flip rate to plan with, and a line about where it is from.

    One that was measured counts a flip at least: none in n prompts do not mean that there are none.
    """
    if given is not None:
        return given, f"flip rate {given:g}, as given"
    if one is None or one.flip_rate is None:
        return (
            USUAL_FLIP_RATE,
            f"flip rate {USUAL_FLIP_RATE:g}, the default: the run shows no flips",
        )
    least = max(one.flip_rate, 1.0 / one.n)
    seen = "" if least == one.flip_rate else f"; {one.flip_rate:g} counts as one flip"
    return least, f"flip rate {least:.4g}, measured: {one.flips_of}{seen}"


def _choose_design_effect(given: float | None, one: Measured | None) -> float:
    if given is not None:
        return given
    return 1.0 if one is None else one.design_effect


def _compute_needed(
    detect: float | None,
    theta: float | None,
    probability: float,
    flip_rate: float,
    sigma: float,
    alpha: float,
    beta: float,
    design_effect: float,
) -> int:
    """Return the number of samples for the drop to detect, else for theta."""
    from serve_eval.stats.classic import num_samples_for
    from serve_eval.stats.planning import num_pairs_for

    if detect is not None:
        needed = num_pairs_for(detect / 100, flip_rate, alpha, 1.0 - probability)
        return math.ceil(needed * design_effect)
    assert theta is not None
    return num_samples_for(theta, sigma, alpha, beta)


def _spread(one: Measured) -> str:
    rate = "" if one.per_second is None else f", {one.per_second:.1f} samples per second"
    first = f"{one.task}: {one.n} samples, value {one.value:.3f}{rate}"
    if not one.sigma:
        return f"{first}\n  all with the same score: their spread is not known"
    return (
        f"{first}\n  standard deviation {one.sigma:.3f} points (right or wrong with that mean:"
        f" {one.bernoulli:.3f})"
    )


def _curves(
    n: int,
    detect: float | None,
    probability: float,
    flip_rate: float,
    sigma: float,
    alpha: float,
    margin: float | None,
    tests: int,
    design_effect: float,
) -> Panel:
    """Return the chance of noticing a drop with n samples, by verdict rule.

    The drops range from zero to one that the classic rule nearly always notices.
    """
    from serve_eval.report.plots import LevelLine, Panel, PlotLine
    from serve_eval.stats.classic import classic_test
    from serve_eval.stats.planning import (
        classic_power,
        compute_fail_power,
        compute_margin,
        compute_paired_power,
        noninferiority_power,
    )

    limit = detect or USUAL_MARGIN
    matters = 100.0 * compute_margin(n, alpha, sigma / 100) if margin is None else margin
    end = min(
        100.0 * (1.0 - flip_rate),
        max(1.3 * classic_test(n, 0.0, sigma, alpha, 0.2).theta, 2.0 * limit),
    )
    drops = [end * i / CURVE_STEPS for i in range(CURVE_STEPS + 1)]
    shares = [drop / 100 for drop in drops]
    classic = [classic_power(drop, n, flip_rate, alpha, sigma / 100) for drop in shares]
    alone = max(1, round(n / design_effect))
    paired = [compute_paired_power(drop, alone, flip_rate, alpha / tests) for drop in shares]
    failed = [
        compute_fail_power(drop, alone, flip_rate, alpha, matters / 100, tests=tests)
        for drop in shares
    ]
    excluded = [
        noninferiority_power(limit / 100, alone, flip_rate, alpha, drop=drop) for drop in shares
    ]
    levels = [
        LevelLine(label=f"wanted: {probability:g}", at=probability),
        LevelLine(label=f"alpha: {alpha:g}", at=alpha),
    ]
    if detect is not None:
        levels.append(
            LevelLine(label=f"drop to detect: {detect:g} points", at=detect, upright=True)
        )
    return Panel(
        title=f"{n} samples, flip rate {flip_rate:g}, sigma {sigma:g} points, alpha {alpha:g}",
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
