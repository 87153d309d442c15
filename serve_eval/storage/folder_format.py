"""Check the format version of a run folder, which is `schema_version` in plan.json.

Every reader checks it and accepts every version up to its own. Raise FOLDER_FORMAT when an older
serve-eval would misread the new files, such as a new file that the verdict depends on, or a field
with a new meaning. A field with a default, or a file that is only informative, needs no new
version. A plan.json without a version has format 1.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

import serve_eval
from serve_eval.errors import RunFolderError
from serve_eval.storage.file_names import PLAN_FILE

T = TypeVar("T")
FOLDER_FORMAT = 1
"""The format that this version writes, and the newest that it reads."""
FORMAT_KEY = "schema_version"


class Versioned(msgspec.Struct):
    """The part of a file that holds its version. A file without one has version 1."""

    schema_version: int = 1


_decoder = msgspec.json.Decoder(Versioned)


def check_format(run: Path) -> None:
    """Raise RunFolderError for a run folder with a newer format.

    A folder without a readable plan.json passes.
    """
    try:
        found = _decoder.decode((run / PLAN_FILE).read_bytes())
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return
    refuse_newer(run, found.schema_version, FOLDER_FORMAT)


def decode_known(file: Path, of: type[T], known: int) -> T:
    """Return the content of a file after checking its own version.

    The version comes first, since a newer file has other fields. Raises RunFolderError if the
    version is newer than `known`, and OSError, MsgspecError or UnicodeDecodeError if the file is
    missing or damaged.
    """
    data = file.read_bytes()
    refuse_newer(file, _decoder.decode(data).schema_version, known)
    return msgspec.json.decode(data, type=of)


def find_known(file: Path, of: type[T], known: int) -> T | None:
    """Return the content of a folder's file as `decode_known` does, or None for a new folder.

    Raises RunFolderError for a file that is damaged, or that a newer serve-eval wrote.
    """
    try:
        return decode_known(file, of, known) if file.exists() else None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise RunFolderError(
            f"{file} cannot be read: {error}", hint="Use another folder with -o."
        ) from error


def find_content(file: Path, known: int) -> dict[str, Any] | None:
    """Return a folder's file as JSON values without its version, or None for a new folder.

    Raises RunFolderError as `find_known` does.
    """
    found = find_known(file, dict[str, Any], known)
    if found is not None:
        found.pop(FORMAT_KEY, None)
    return found


def refuse_newer(path: Path, version: int, known: int) -> None:
    """Raise RunFolderError if a version is newer than the newest known version."""
    if version > known:
        raise RunFolderError(
            f"{path} has format {version}, but this version of serve-eval"
            f" ({serve_eval.__version__}) reads formats up to {known}",
            hint="Use the serve-eval that wrote it, or a newer one.",
        )
