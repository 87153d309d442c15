"""Read and write how a check of invariants asks: prompt lengths, cache salt and fillings."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from serve_eval.storage.file_names import CHUNKS_FILE, PRESSURE_FILE, SALT_FILE
from serve_eval.storage.private_files import pretty_json, write_private


class CacheSalt(msgspec.Struct, frozen=True, kw_only=True):
    """The salt from which each prompt gets a cache_salt of its own.

    `value` is None if none is sent, for the reason in `why`.
    """

    value: str | None
    why: str = ""


class PressureLevel(msgspec.Struct, frozen=True, kw_only=True):
    """One filling of the cache: the tokens of other prompts that were `wanted` and `filled`.

    `seed` is that of the prompts.
    """

    wanted: int
    filled: int
    seed: int

    @property
    def name(self) -> str:
        """The name of the pass that asks the old prompts after it."""
        return f"pressure_{self.wanted}"


class PressureLog(msgspec.Struct, frozen=True, kw_only=True):
    """The fillings so far, and the tokens for which the cache has room (None: not known).

    `skipped` is the reason why there are none; "": none yet.
    """

    levels: tuple[PressureLevel, ...] = ()
    capacity: int | None = None
    ended: bool = False
    skipped: str = ""


def find_chunks(folder: Path, of: Any) -> dict[str, Any]:
    """Return the lengths that earlier sessions settled on, by size, converted to the type `of`.

    Return none if they cannot be read.
    """
    try:
        return msgspec.json.decode((folder / CHUNKS_FILE).read_bytes(), type=dict[str, of])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def write_chunks(folder: Path, chunks: Mapping[str, object]) -> None:
    """Write the lengths that this session settled on.

    Raises RunFolderError, and JournalError for a full disk.
    """
    write_private(folder / CHUNKS_FILE, pretty_json(chunks))


def find_salt(folder: Path) -> CacheSalt | None:
    """Return the salt that an earlier session settled on, or None if there is none to read."""
    try:
        return msgspec.json.decode((folder / SALT_FILE).read_bytes(), type=CacheSalt)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None


def write_salt(folder: Path, salt: CacheSalt) -> None:
    """Write the salt. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / SALT_FILE, pretty_json(salt))


def read_pressure(folder: Path) -> PressureLog:
    """Return the fillings of earlier sessions; none if they cannot be read."""
    try:
        return msgspec.json.decode((folder / PRESSURE_FILE).read_bytes(), type=PressureLog)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return PressureLog()


def write_pressure(folder: Path, log: PressureLog) -> None:
    """Write the fillings so far. Raises RunFolderError, and JournalError for a full disk."""
    write_private(folder / PRESSURE_FILE, pretty_json(log))
