"""Run `serve-eval references power`: compute detectable drops by sample size, and the reverse."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Annotated, ClassVar

import typer

from serve_eval.cli._common_options import PageFaceOptions
from serve_eval.cli._options import command
from serve_eval.frozen import frozen
from serve_eval.plugins.setting import Setting


@frozen
class PowerOptions:
    """Choose the question, and what is assumed for its answer."""

    title: ClassVar[str] = "Question"
    command: ClassVar[str] = "power"
    total: Annotated[
        int | None, Setting("Samples in the data set: print the table by n.", metavar="N")
    ] = None
    theta: Annotated[
        float | None,
        Setting("Minimum detectable effect: print the smallest n.", metavar="POINTS"),
    ] = None
    detect: Annotated[
        float | None,
        Setting("Drop to detect: print n for each verdict rule.", metavar="POINTS"),
    ] = None
    power: Annotated[
        float, Setting("Probability of detecting that drop (default 0.8).", metavar="P")
    ] = 0.8
    flip_rate: Annotated[
        float | None,
        Setting(
            "Share of prompts on which two runs of one endpoint disagree (about 0.19 with"
            " sampling). Default: that of --from, by its repeats, else by the runs of its"
            " reference, else against its reference; without any, 0.034.",
            metavar="SHARE",
        ),
    ] = None
    from_run: Annotated[
        Path | None,
        Setting(
            "Run folder whose spread, flips and throughput to use, task by task.",
            flags=("--from",),
            metavar="RUN",
        ),
    ] = None
    sigma: Annotated[
        float | None,
        Setting(
            "Standard deviation of a sample's score, for the classic rule. Default: with --from"
            " that which judged the run, else the measured one; without, 50.",
            metavar="POINTS",
            flag=False,
        ),
    ] = None
    alpha: Annotated[
        float,
        Setting(
            "Probability of failing an unchanged endpoint (default 0.05).", metavar="P", flag=False
        ),
    ] = 0.05
    beta: Annotated[
        float,
        Setting(
            "Probability of passing an endpoint that is theta points worse (default 0.2).",
            metavar="P",
            flag=False,
        ),
    ] = 0.2
    margin: Annotated[
        float | None,
        Setting(
            "Margin of the paired rule, which fails a proven drop only if one of the margin is not"
            " excluded. Default: that of the rule, the classic margin at n.",
            metavar="POINTS",
        ),
    ] = None
    tests: Annotated[
        int,
        Setting(
            "Paired tests of a suite (default 1): Holm's correction asks at most alpha / N of a"
            " proof. The figures are those of the worst rank.",
            metavar="N",
            flag=False,
        ),
    ] = 1
    design_effect: Annotated[
        float | None,
        Setting(
            "Factor on the variance of the paired rules if prompts share groups: 1 + (m - 1) r for"
            " groups of m prompts, such as questions on a passage, whose changes have the"
            " correlation r. Default: that of --from, by the runs of its reference, else by its"
            " changes against the reference; without any, 1.",
            metavar="FACTOR",
            flag=False,
        ),
    ] = None
    repeats: Annotated[
        int,
        Setting(
            "Answers to each prompt on both sides, as with run --repeats (default 1).", metavar="N"
        ),
    ] = 1
    settings: Annotated[
        list[str] | None,
        Setting(
            "Set power.sigma, alpha, beta, tests or design_effect: power.alpha=0.01. Repeatable.",
            flags=("--set",),
            metavar="power.OPTION=VALUE",
        ),
    ] = None


@command()
def references_power(faces: PageFaceOptions, asked: PowerOptions) -> None:
    """Compute the drop that n samples can detect, or the samples that a drop takes.

    Give at least one of --total, --theta, --detect and --from.
    """
    from serve_eval.cli._ci_files import check_asked
    from serve_eval.cli._ending import end
    from serve_eval.errors import PlanError
    from serve_eval.storage.json_files import pretty_json
    from serve_eval.workflows.power.answers import answer
    from serve_eval.workflows.power.assumed import PowerQuestion
    from serve_eval.workflows.power.document import make_document

    check_asked(faces.junit, faces.notify_text, as_json=faces.as_json)
    if asked.settings:
        raise PlanError(f"--set {asked.settings[0]}: it sets power.OPTION, as in power.alpha=0.01")
    question = PowerQuestion(
        **{
            one.name: getattr(asked, one.name)
            for one in fields(PowerOptions)
            if one.name not in ("from_run", "settings")
        }
    )
    found = answer(question, asked.from_run)
    figures = pretty_json({"schema_version": 1, "tasks": found})
    document = make_document(found, question, asked.from_run)
    raise typer.Exit(end(document, faces, about=asked.from_run, figures=figures))
