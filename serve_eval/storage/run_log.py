"""Write run.log: what happened in the sessions of a run, a line each with its time.

The file is private, has no secrets, and never stops a run. When it is full, it is moved to
run.log.1, which it replaces.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from serve_eval.storage.file_names import LOG_FILE

MOST_BYTES = 1024 * 1024
"""Size of run.log at which it is moved away."""
MOST_CHARACTERS = 2000
"""Longest line; a server may answer with a page."""


class RunLog:
    """The log of a run folder. `hide` removes secrets from a line."""

    def __init__(self, folder: Path, hide: Callable[[str], str]) -> None:
        self._file, self._hide = folder / LOG_FILE, hide

    def note(self, line: str) -> None:
        """Append a line with the time. Ignores a disk that is full or a file that is not ours."""
        flat = " ".join(self._hide(line).split())
        plain = "".join(c if c.isprintable() else "?" for c in flat)[:MOST_CHARACTERS]
        stamp = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        data = f"{stamp}  {plain}\n".encode(errors="backslashreplace")
        with suppress(OSError):
            if self._file.exists() and self._file.stat().st_size + len(data) > MOST_BYTES:
                self._file.replace(self._file.with_name(f"{LOG_FILE}.1"))
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
            with os.fdopen(os.open(self._file, flags, 0o600), "ab") as out:
                out.write(data)
