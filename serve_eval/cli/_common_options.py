"""Declare the options that several commands take and that no plan has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from serve_eval.cli._include import TRUST_HELP
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.evaluation.rerun import Rerun

TrustPlan = Annotated[bool, Setting(TRUST_HELP, variable="never")]
Reuse = Annotated[bool, Setting("Use the same servers where they are held already.")]
RerunWhat = Annotated[
    str,
    Setting("What to ask again: never, failed (default), changed, version, all.", metavar="WHAT"),
]
RunAll = Annotated[bool, Setting("The same as --rerun all; old answers are archived.")]
Strict = Annotated[bool, Setting("Exit with 1 instead of 3.")]
ReportAsJson = Annotated[bool, Setting("Print the report as one JSON object.", flags=("--json",))]


def rerun_of(text: str, *, run_all: bool) -> Rerun:
    """Return what is asked again, of the words of the command line. Raises PlanError for another
    word.
    """
    from typing import get_args

    from serve_eval.errors import PlanError
    from serve_eval.evaluation.rerun import Rerun

    chosen: Rerun | None = next((one for one in get_args(Rerun) if one == text), None)
    if chosen is None:
        raise PlanError(f"--rerun: {text!r} is none of {', '.join(get_args(Rerun))}")
    if run_all and chosen not in ("failed", "all"):  # failed: most probably not said
        raise PlanError(
            f"--run-all asks everything again, and --rerun {chosen} does not: give one of them"
        )
    return "all" if run_all else chosen
