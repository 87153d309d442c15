"""Read `--include-path`, which names folders with the user's own code.

Commands that may need the user's tasks, scorers, launchers or verdict rules have this option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from serve_eval.cli._options import lines_of
from serve_eval.evaluation.plan.flag_values import absolute_all
from serve_eval.evaluation.plan.shared_options import INCLUDE_HELP
from serve_eval.shell_words import quote_path

if TYPE_CHECKING:
    from serve_eval.schema import Plan

TRUST_HELP = (
    "Follow the plan of a folder that is not yours: run its commands and send keys to its"
    " endpoints."
)
TrustPlan = Annotated[bool, typer.Option("--trust-plan", help=TRUST_HELP)]
IncludePath = Annotated[
    list[str] | None, typer.Option("--include-path", metavar="DIR", help=INCLUDE_HELP)
]


def folders_of(given: Sequence[str] | None) -> list[str]:
    """Return the absolute paths given by the flags or by SERVE_EVAL_INCLUDE_PATH.

    The variable holds one path per line, and counts only if no flag is given.
    """
    return absolute_all(given or lines_of("SERVE_EVAL_INCLUDE_PATH"))


def permissions(plans: Sequence[Plan]) -> str:
    """Return the flags that must be given again to resume saved plans.

    Permission to run code is never saved.
    """
    paths = dict.fromkeys(path for plan in plans for path in plan.include_path)
    flags = "".join(f" --include-path {quote_path(path)}" for path in paths)
    return (
        " --allow-code-execution" if any(plan.allow_code_execution for plan in plans) else ""
    ) + flags
