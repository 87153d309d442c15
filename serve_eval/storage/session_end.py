"""Find what ended the last session of a run without a report: the last lines of run.log."""

from __future__ import annotations

import re
from pathlib import Path

from serve_eval.storage.file_names import LOG_FILE

INTERRUPTED = "interrupted"
MOST_CHARACTERS = 400
"""Characters of a message that are kept: it may have the tail of a server's log."""
_EVENT = re.compile(r"^\S+Z  (start|end): (.*)$", re.MULTILINE)
_ENDING = re.compile(r"^(?:[A-Z]\w*: )?(.*?)(?:; \d+ retries)?$")
_FINISHED = "exit code "


def find_session_end(run: Path) -> str:
    """Return the error that ended the last session, INTERRUPTED, or "" if none is recorded.

    A session that was killed, goes on, or has a report records none.
    """
    try:
        text = (run / LOG_FILE).read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    kind, said = next(reversed(_EVENT.findall(text)), ("start", ""))
    if kind == "start" or said.startswith(_FINISHED):
        return ""
    found = _ENDING.match(said)
    message = said if found is None else found[1]
    return message if len(message) <= MOST_CHARACTERS else f"{message[: MOST_CHARACTERS - 3]}..."
