"""Declare the options of `serve-eval references power`: its question."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, ClassVar

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting


@freeze
class PowerQuestion:
    """Choose the question, and what is assumed for its answer.

    `total` samples find which drop; a `theta` of the classic rule, or a drop to `detect`, takes how
    many samples. None has the value that was measured, or the usual one.
    """

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

    def check(self) -> None:
        """Raise PlanError if nothing is asked, or for a number that is out of range."""
        if self.from_run is None and self.total is self.theta is self.detect is None:
            raise PlanError(
                "give at least one of --total N, --theta POINTS, --detect POINTS and --from RUN"
            )
        if self.margin is not None and not 0.0 < self.margin < math.inf:
            raise PlanError(f"--margin must be above 0 and finite, in points, not {self.margin:g}")
        if self.total is not None and self.total < 1:
            raise PlanError(f"--total must be 1 or more, not {self.total}")
        if self.repeats < 1:
            raise PlanError(f"--repeats must be 1 or more, not {self.repeats}")
        if self.tests < 1:
            raise PlanError(f"power.tests must be 1 or more, not {self.tests}")
        if self.design_effect is not None and not 1.0 <= self.design_effect < math.inf:
            raise PlanError(f"power.design_effect must be 1 or more, not {self.design_effect:g}")
