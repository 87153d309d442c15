"""Read the time of the last answer of a run."""

from __future__ import annotations

from pathlib import Path

from serve_eval.storage.file_names import journals_below


def read_last_answer(folder: Path) -> float | None:
    """Return when the last answer of a run came, in seconds since 1970. None: there is none."""
    written = (file.stat() for file in journals_below(folder))
    return max((one.st_mtime for one in written if one.st_size), default=None)
