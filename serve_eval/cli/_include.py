"""`--include-path`, which every command has that may need the user's own tasks, scorers, launchers or verdict rules."""

from __future__ import annotations

import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from serve_eval.schema import Plan

HELP = "Folder with tasks, scorers, launchers, verdicts of your own; its code runs. Repeatable."
TRUST_HELP = "Follow the plan of a folder that is not your own: run what it runs, send keys where it sends them."
TrustPlan = Annotated[bool, typer.Option("--trust-plan", help=TRUST_HELP)]
IncludePath = Annotated[list[str] | None, typer.Option("--include-path", metavar="DIR", help=HELP)]


def folders_of(given: Sequence[str] | None) -> list[str]:
    """The full paths that flags name, else those of SERVE_EVAL_INCLUDE_PATH, one per line."""
    paths = given or [line for line in os.environ.get("SERVE_EVAL_INCLUDE_PATH", "").splitlines() if line.strip()]
    return [str(Path(path).expanduser().absolute()) for path in paths]


def permissions(plans: Sequence[Plan]) -> str:
    """The flags without which a saved plan does not go on: what runs code is said anew each time."""
    paths = dict.fromkeys(path for plan in plans for path in plan.include_path)
    flags = "".join(f" --include-path {shlex.quote(path)}" for path in paths)
    return (" --allow-code-execution" if any(plan.allow_code_execution for plan in plans) else "") + flags
