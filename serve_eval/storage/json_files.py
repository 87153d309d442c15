"""Write whole JSON files for their user alone, check their format or list their differences.

Every reader checks it and accepts every version up to its own. Raise FOLDER_FORMAT when an older
serve-eval would misread the new files, such as a new file that the verdict depends on, or a field
with a new meaning. A field with a default, or a file that is only informative, needs no new
version. A plan.json without a version has format 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import msgspec

import serve_eval
from serve_eval.errors import JournalError, RunFolderError
from serve_eval.storage.file_names import PLAN_FILE
from serve_eval.storage.journal import FULL_DISK, NO_ROOM_HINT
from serve_eval.whole_file import replace_file


def write_private(path: Path, data: bytes) -> None:
    """Write a file whole or not at all, readable only by the user.

    Raises JournalError for a full disk, else RunFolderError.
    """
    with replace_private(path) as file:
        file.write(data)


@contextmanager
def replace_private(path: Path) -> Iterator[BinaryIO]:
    """Yield a file that replaces `path` if the block succeeds. Raises as `write_private` does."""
    try:
        with replace_file(path) as file:
            yield file
    except OSError as error:
        if error.errno in FULL_DISK:
            raise JournalError(
                f"{path}: cannot write: {error.strerror}", hint=NO_ROOM_HINT
            ) from error
        raise RunFolderError(f"{path}: cannot write: {error.strerror}") from error


def pretty_json(value: object) -> bytes:
    """Return JSON for people, with two spaces of indentation and a final newline.

    Non-finite numbers become null.
    """
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def read_written_text(path: Path) -> str:
    """Return the text of a file that this command has just written."""
    return path.read_text(encoding="utf-8")


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


LONGEST, BEFORE = 80, 20
"""Characters of a value that a line shows, and how many stand before its difference."""


def differences(old: Any, new: Any, where: str = "") -> list[str]:
    """Return the differences between two JSON values as lines `path: was X, now Y`."""
    return [f"{path}: was {was}, now {now}" for path, was, now in list_differing(old, new, where)]


def refuse_other(folder: Path, what: str, known: Any, wanted: Any) -> None:
    """Raise RunFolderError if a folder holds another one of these than is wanted.

    `known` are the JSON values that the folder holds, or None for a new folder.
    """
    if known is not None and (differing := differences(known, wanted)):
        raise RunFolderError(
            f"{folder} holds another {what}:\n" + "\n".join(f"  {line}" for line in differing),
            hint="Use another folder with -o.",
        )


def list_differing(old: Any, new: Any, where: str = "") -> list[tuple[str, str, str]]:
    """Return the paths at which two JSON values differ, each with both values in brief."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = [*old, *(k for k in new if k not in old)]
        return [
            one
            for key in keys
            for one in list_differing(
                old.get(key), new.get(key), f"{where}.{key}" if where else str(key)
            )
        ]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [one for i, (a, b) in pairs for one in list_differing(a, b, f"{where}[{i}]")]
    return [] if old == new else [(where, *_brief(old, new))]


def _brief(old: Any, new: Any) -> tuple[str, str]:
    """Return two values in brief, each around the place at which they part."""
    texts = [msgspec.json.encode(value).decode() for value in (old, new)]
    same = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(*texts, strict=False)))
    was, now = (_cut(text, same) for text in texts)
    return was, now


def _cut(text: str, place: int) -> str:
    """Return at most LONGEST characters of a text, with a few before `place`."""
    if len(text) <= LONGEST:
        return text
    kept = LONGEST - 6
    start = max(0, min(place - BEFORE, len(text) - kept))
    end = start + kept
    return f"{'...' if start else ''}{text[start:end]}{'...' if end < len(text) else ''}"
