"""The rules of a bisection, which are its options."""

from __future__ import annotations

from typing import Annotated, ClassVar

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting


@freeze
class BisectRules:
    """Choose the drop that counts, and when to give up (None: never)."""

    title: ClassVar[str] = "Test and budget"
    command: ClassVar[str] = "bisect"
    margin: Annotated[
        float | None,
        Setting(
            "Drop in points that counts as worse (default: half of the drop that the bad"
            " configuration shows).",
            metavar="POINTS",
        ),
    ] = None
    budget_starts: Annotated[
        int | None,
        Setting(
            "Start at most N servers.",
            metavar="N",
        ),
    ] = None
    budget_gpu_hours: Annotated[
        float | None,
        Setting(
            "Begin no further step after this many GPU hours.",
            metavar="HOURS",
            flag=False,
        ),
    ] = None

    def check(self) -> None:
        """Raise PlanError for a number that is out of range."""
        if self.margin is not None and not 0 < self.margin < 100:
            raise PlanError("--margin must be a positive number of points, such as 2")
        if self.budget_starts is not None and self.budget_starts < 2:
            raise PlanError("--budget-starts must be 2 or more: both sides start once")
        if self.budget_gpu_hours is not None and not self.budget_gpu_hours > 0:
            raise PlanError("bisect.budget_gpu_hours must be above 0")
