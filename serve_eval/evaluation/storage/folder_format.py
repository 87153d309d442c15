"""The version of a run folder's format, kept as `schema_version` of plan.json, and its check by
every reader.

Raise FOLDER_FORMAT when an older serve-eval would misread what a newer one writes: another file or
folder of which its verdict depends, another meaning of a field. A field with a default, or a file
that only informs, needs no new version. A reader takes every version up to its own. A plan.json
without one is of format 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

import msgspec

import serve_eval
from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage.file_names import PLAN_FILE

T = TypeVar("T")
FOLDER_FORMAT = 1
"""The format that this version writes, and the newest that it reads."""
FORMAT_KEY = "schema_version"


class Versioned(msgspec.Struct):
    """So much of a file as tells its version; one without is of the first."""

    schema_version: int = 1


_decoder = msgspec.json.Decoder(Versioned)


def check_format(run: Path) -> None:
    """Raise RunFolderError for a run folder of a newer format; a folder without a readable
    plan.json is of none.
    """
    try:
        found = _decoder.decode((run / PLAN_FILE).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return
    refuse_newer(run, found.schema_version, FOLDER_FORMAT)


def decode_known(file: Path, of: type[T], known: int) -> T:
    """Return the content of a file with a version of its own, which is looked at first: a newer one
    has other fields.

    Raises RunFolderError where the version is newer than `known`, and OSError, MsgspecError or
    UnicodeDecodeError for a file that is not there or damaged.
    """
    data = file.read_bytes()
    refuse_newer(file, _decoder.decode(data).schema_version, known)
    return msgspec.json.decode(data, type=of)


def refuse_newer(path: Path, version: int, known: int) -> None:
    """Raise RunFolderError where a version is newer than the newest that is known."""
    if version > known:
        raise RunFolderError(
            f"{path} is of format {version}, and this version of serve-eval"
            f" ({serve_eval.__version__}) reads formats up to {known}",
            hint=(
                "Read it with the serve-eval that made it, or with a newer one: pip install"
                " --upgrade serve-eval"
            ),
        )
