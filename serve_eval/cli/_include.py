"""`--include-path`, which every command has that may need the user's own tasks, scorers, launchers
or verdict rules.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from serve_eval.cli._options import lines_of
from serve_eval.evaluation.plan.flag_values import absolute_all
from serve_eval.evaluation.plan.shared_options import INCLUDE_HELP

if TYPE_CHECKING:
    from serve_eval.schema import Plan

TRUST_HELP = (
    "Follow the plan of a folder that is not your own: run what it runs, send keys where it sends"
    " them."
)
TrustPlan = Annotated[bool, typer.Option("--trust-plan", help=TRUST_HELP)]
IncludePath = Annotated[
    list[str] | None, typer.Option("--include-path", metavar="DIR", help=INCLUDE_HELP)
]


def folders_of(given: Sequence[str] | None) -> list[str]:
    """Return the full paths that flags name, else those of SERVE_EVAL_INCLUDE_PATH, one per
    line.
    """
    return absolute_all(given or lines_of("SERVE_EVAL_INCLUDE_PATH"))


def permissions(plans: Sequence[Plan]) -> str:
    """Return the flags without which a saved plan does not go on: what runs code has to be given
    each time.
    """
    paths = dict.fromkeys(path for plan in plans for path in plan.include_path)
    flags = "".join(f" --include-path {shlex.quote(path)}" for path in paths)
    return (
        " --allow-code-execution" if any(plan.allow_code_execution for plan in plans) else ""
    ) + flags
