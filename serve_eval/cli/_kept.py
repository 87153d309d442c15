"""Tell the user whether answers of an interrupted command are kept."""

from __future__ import annotations

from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import typer

from serve_eval.cli._async import Interrupted
from serve_eval.errors import ServeEvalError
from serve_eval.shell_words import quote_path


def explain_kept(folder: Path, again: str) -> str:
    """Return a line with the command `again` that resumes.

    It says that answers are kept only if the folder holds some.
    """
    from serve_eval.storage.run_folder import holds_answer

    return (
        f"Finished answers are kept. Resume with: {again}"
        if holds_answer(folder)
        else f"No answer was received yet. Try again with: {again}"
    )


def find_continued(finding: Coroutine[Any, Any, tuple[Path, float] | None]) -> Path | None:
    """Return the unfinished folder that `finding` finds, with a line that it is continued."""
    from serve_eval.cli._async import run_async
    from serve_eval.cli._streams import say
    from serve_eval.verdicts.exit_code import INTERRUPTED

    try:
        found = run_async(finding)
    except Interrupted:
        say("Interrupted; nothing was saved")
        raise typer.Exit(INTERRUPTED) from None
    if found is None:
        return None
    folder, age_s = found
    minutes = round(age_s / 60)
    ago = f"{minutes} min" if minutes < 120 else f"{minutes // 60} h"
    say(
        f"serve-eval: continuing {folder}, which is unfinished (last answer {ago} ago); to begin a"
        " new run: --new"
    )
    return folder


def can_resume(ending: Interrupted | ServeEvalError, folder: Path) -> bool:
    """Return True if the same command may go on with what the folder holds.

    One that named an unknown model has to be changed, if it received no answer before.
    """
    from serve_eval.errors import UnknownModelError
    from serve_eval.storage.run_folder import holds_answer
    from serve_eval.verdicts.exit_code import INFRASTRUCTURE

    if isinstance(ending, UnknownModelError):
        return holds_answer(folder)
    return isinstance(ending, Interrupted) or ending.exit_code == INFRASTRUCTURE


def end_early(ending: Interrupted | ServeEvalError, folder: Path, plan_file: str) -> int:
    """Say what is kept of a command that ended early, and return its exit code.

    The folder holds something to resume once it has `plan_file`, a name or a pattern. An error is
    raised again.
    """
    from serve_eval.cli._streams import say
    from serve_eval.verdicts.exit_code import INTERRUPTED

    if can_resume(ending, folder) and any(folder.glob(plan_file)):
        say(explain_kept(folder, f"the same command with -o {quote_path(folder)}"))
    elif isinstance(ending, Interrupted):
        say("Interrupted; nothing was saved")
    if isinstance(ending, ServeEvalError):
        raise ending
    return INTERRUPTED
