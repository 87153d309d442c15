"""Write the permissions that a command for a saved plan needs, since none is ever saved."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.plugins.registry import name_folders
from serve_eval.shell_words import quote_path

if TYPE_CHECKING:
    from serve_eval.schema import Plan


def permissions(plans: Sequence[Plan]) -> str:
    """Return the flags that must be given again to resume or to judge saved plans."""
    runs = any(plan.allow_code_execution for plan in plans)
    folders = name_folders(path for plan in plans for path in plan.include_path)
    return f"{' --allow-code-execution' if runs else ''}{folders}"


def write_resume_command(folder: Path, plan: Plan) -> str:
    """Return the command that resumes the run of a plan in a folder."""
    return f"serve-eval run --resume {quote_path(folder)}{permissions([plan])}"
