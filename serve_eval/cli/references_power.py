"""Run `serve-eval references power`: compute detectable drops by sample size, and the reverse."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from serve_eval.cli._common_options import PageFaceOptions
from serve_eval.cli._options import command


@command()
def references_power(
    faces: PageFaceOptions,
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
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.cli._page import save_plot
    from serve_eval.errors import PlanError
    from serve_eval.evaluation.storage.private_files import pretty_json
    from serve_eval.workflows.power.answers import answer
    from serve_eval.workflows.power.assumed import PowerQuestion
    from serve_eval.workflows.power.document import make_document

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    asked = PowerQuestion(
        total=total,
        theta=theta,
        detect=detect,
        power=probability,
        flip_rate=flip_rate,
        sigma=sigma,
        alpha=alpha,
        beta=beta,
        margin=margin,
        tests=tests,
        design_effect=design_effect,
        repeats=repeats,
    )
    if plot is not None:
        from serve_eval.report.plots import check_plot

        check_plot(plot)
        if repeats > 1:
            raise PlanError("--plot draws the power of one answer a side: leave out --repeats")
    found = answer(asked, from_run)
    figures = pretty_json({"schema_version": 1, "tasks": found})
    code = end(make_document(found, asked, from_run), faces, about=from_run, figures=figures)
    if plot is not None:
        from serve_eval.workflows.power.curves import count_drawn, make_panels

        sizes = ", ".join(str(count_drawn(asked, one)) for one in found)
        told = f"power against drop with {sizes} samples"
        save_plot(lambda: make_panels(asked, found), plot, told)
    raise typer.Exit(code)
