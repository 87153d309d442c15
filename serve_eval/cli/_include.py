"""Read `--include-path`, which names folders with the user's own code.

Commands that may need the user's tasks, scorers, launchers or verdict rules have this option.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from serve_eval.cli._options import lines_of
from serve_eval.plan.shared_options import INCLUDE_HELP, absolute_all

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
