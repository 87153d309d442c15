"""The mark of a run folder that a command fills with the answers of other run folders."""

from __future__ import annotations

from pathlib import Path

import msgspec

from serve_eval.storage.file_names import COPY_FILE


class CopyMark(msgspec.Struct, frozen=True, kw_only=True):
    """The sources of a copy, the hash of its plan, and if it is complete."""

    schema_version: int = 1
    sources: tuple[str, ...] = ()
    plan: str = ""
    done: bool = False


def find_copy(path: Path) -> CopyMark | None:
    """Return the mark of a folder, or None for a folder of no copy.

    A mark that cannot be read is not ours: ours are written whole. Nothing is emptied then.
    """
    try:
        return msgspec.json.decode((path / COPY_FILE).read_bytes(), type=CopyMark)
    except FileNotFoundError:
        return None
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return CopyMark(done=True)


def is_unfinished_copy(path: Path) -> bool:
    """Return True if a folder lacks answers that its command will copy."""
    mark = find_copy(path)
    return mark is not None and not mark.done


def forget_copy(path: Path) -> None:
    """Remove the mark of a complete copy, which then is a run like any other."""
    (path / COPY_FILE).unlink(missing_ok=True)
