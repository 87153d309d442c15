"""Say which folder of a saved plan has the code that a name stands for.

A saved plan keeps its folders of code, but their code runs only if the user names them again. Until
then serve-eval looks for the names of their files only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from serve_eval.errors import WithheldCodeError
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import current, open_scope
from serve_eval.shell_words import quote_path


def withhold(folders: Iterable[str]) -> None:
    """Add the folders of a saved plan to the scope, without permission to run their code."""
    known = open_scope().withheld
    known += [folder for folder in folders if folder not in known]


def find_withheld(folder: str, name: str) -> list[str]:
    """Return the withheld folders that offer a name of one of our packages.

    If none does, they are those that are gone: the code may have been there.
    """
    found = current()
    withheld = [] if found is None else found.withheld
    having = [one for one in withheld if _offers(Path(one), folder, name.partition(":")[0])]
    return having or [one for one in withheld if not Path(one).is_dir()]


def _offers(place: Path, folder: str, name: str) -> bool:
    if name == extensions.LM_EVAL and (place / extensions.LM_EVAL).is_dir():
        return True
    kind = place / extensions.KINDS[folder]
    return (kind / f"{name}.py").is_file() or (kind / name / "__init__.py").is_file()


def explain_withheld(wanted: Sequence[str], folders: Sequence[str]) -> WithheldCodeError:
    """Return the error for what a saved plan takes from folders that were not named again."""
    folder = "folder" if len(folders) == 1 else "folders"
    return WithheldCodeError(
        f"the saved plan takes its {', '.join(wanted)} from {', '.join(folders)},"
        f" whose code runs only if you name the {folder} again",
        hint=f"If you trust it: {name_folders(folders).strip()}",
    )


def name_folders(folders: Iterable[str]) -> str:
    """Return the flags that name folders of code, each after a space."""
    return "".join(f" --include-path {quote_path(path)}" for path in dict.fromkeys(folders))
