"""Read the folders that a command line names: of a run, or of the user's own code.

Commands that may need the user's tasks, scorers, launchers or verdict rules have this option.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from serve_eval.cli._options import lines_of
from serve_eval.cli._streams import say
from serve_eval.plan.shared_options import INCLUDE_HELP, absolute_all

LATEST = Path("latest")


def name_run(meaning: str) -> Any:
    """Return an argument that names a run folder, with its meaning for the help.

    Its default is LATEST. A folder that only holds runs, such as outputs/, stands for the last one
    of them. The folder that was found comes first on standard error, and that it is a rehearsal's.
    """
    return typer.Argument(metavar="RUN", help=meaning, callback=_find_and_tell, show_default=False)


def name_runs(meaning: str) -> Any:
    """Return an argument that names several run folders; its default is [LATEST]."""
    return typer.Argument(
        metavar="RUN...", help=meaning, callback=_find_and_tell_each, show_default=False
    )


def _find_and_tell_each(context: typer.Context, folders: Sequence[Path]) -> list[Path]:
    """Find each folder; one that only holds runs stands for all of them."""
    if context.resilient_parsing:
        return list(folders)
    return [_tell(folder, find_run(folder)) for folder in folders]


def _find_and_tell(context: typer.Context, folder: Path) -> Path:
    return folder if context.resilient_parsing else find_told(folder)


def find_told(folder: Path) -> Path:
    """Return the folder that this is, as `name_run` does, and tell it on standard error."""
    from serve_eval.storage.command_folder import find_last_below

    found = find_run(folder)
    assert found is not None
    return _tell(folder, (find_last_below(found) if found.is_dir() else None) or found)


def _tell(given: Path, found: Path | None) -> Path:
    assert found is not None
    if found != given:
        from serve_eval.report.text import clean

        say(f"the latest run: {clean(str(found))}")
    _tell_rehearsal(found)
    return found


def _tell_rehearsal(folder: Path) -> None:
    """Say on standard error that the stand-in answered, whatever the command prints of it."""
    from serve_eval.schema import REHEARSED
    from serve_eval.storage.folder_results import is_of_stand_in

    if is_of_stand_in(folder):
        say(REHEARSED)


def find_run(folder: Path | None) -> Path | None:
    """Return a folder that was given, or for `latest` the one that was written last.

    A folder of that name in the current one takes precedence. Raises RunFolderError if there is
    neither.
    """
    if folder != LATEST or folder.exists():
        return folder
    from serve_eval.storage.command_folder import find_latest

    return find_latest()


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
