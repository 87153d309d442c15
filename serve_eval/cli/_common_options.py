"""Declare the options that several commands share, apart from those of a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, get_args

from serve_eval.cli._run_folder import TRUST_HELP
from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.plugins.setting import Setting

if TYPE_CHECKING:
    from serve_eval.evaluation.earlier_run import Rerun


TrustPlan = Annotated[bool, Setting(TRUST_HELP, variable="never")]
Reuse = Annotated[bool, Setting("Use servers that already run with the same options.")]
RerunWhat = Annotated[
    str,
    Setting(
        "Samples to ask again: never, failed (default), changed, version, all; old answers are"
        " archived.",
        metavar="WHAT",
    ),
]
RequestTimeout = Annotated[
    float, Setting("Time limit of a request (default 60).", metavar="SECONDS", flag=False)
]
Strict = Annotated[bool, Setting("Exit with code 1 if nothing was decided.")]
NotifyText = Annotated[
    Path | None,
    Setting("Write the result as one line of text for chat (- : standard output).", metavar="FILE"),
]
"""A command whose structure has this field, as `notify_text`, writes it whatever its ending."""
Quiet = Annotated[
    bool,
    Setting("Print only the conclusion and errors.", flags=("--quiet", "-q")),
]
"""Every structure with this field, as `quiet`, makes the output of its command quiet."""


@freeze
class ScreenOptions:
    """Choose how much is printed: for commands that read, and find no verdict."""

    title: ClassVar[str] = "Output"
    verbose: Annotated[bool, Setting("Show every figure and table.", flags=("--verbose", "-v"))] = (
        False
    )
    quiet: Quiet = False
    as_json: Annotated[
        bool,
        Setting("Print the result as JSON: serve-eval setup schema document.", flags=("--json",)),
    ] = False


@freeze
class ListOptions:
    """Choose how much of a list is printed."""

    title: ClassVar[str] = "Output"
    verbose: Annotated[
        bool, Setting("Show all that is known of each.", flags=("--verbose", "-v"))
    ] = False
    quiet: Annotated[bool, Setting("Print names alone, one a line.", flags=("--quiet", "-q"))] = (
        False
    )
    as_json: Annotated[bool, Setting("Print the list as JSON.", flags=("--json",))] = False


@freeze
class FaceOptions(ScreenOptions):
    """Choose the format of a result, by the same options for all commands with a verdict."""

    junit: Annotated[Path | None, Setting("Write the result as a JUnit file.", metavar="FILE")] = (
        None
    )
    notify_text: NotifyText = None


@freeze
class PageFaceOptions(FaceOptions):
    """Choose the format of a result that has no folder of its own."""

    output: Annotated[
        Path | None,
        Setting(
            "Write the result as a page into this file.",
            flags=("--output", "-o"),
            metavar="FILE",
        ),
    ] = None


def rerun_of(text: str) -> Rerun:
    """Return the samples to ask again, as --rerun names them. Raises PlanError for another word."""

    from serve_eval.evaluation.earlier_run import Rerun

    chosen: Rerun | None = next((one for one in get_args(Rerun) if one == text), None)
    if chosen is None:
        raise PlanError(f"--rerun: {text!r} is not one of {', '.join(get_args(Rerun))}")
    return chosen


def parse_loads(text: str) -> tuple[int, ...]:
    """Return the numbers of a list such as 1,4,16, in ascending order. Raises PlanError."""
    from serve_eval.workflows.load.story import HIGHEST

    try:
        found = tuple(sorted({int(part) for part in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 1 or found[-1] > HIGHEST:
        raise PlanError(
            f"--concurrency {text}: expected numbers from 1 to {HIGHEST}",
            hint="Such as --concurrency 64, or --concurrency 1,4,16.",
        )
    return found
