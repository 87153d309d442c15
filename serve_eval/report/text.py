"""Make text from other sources safe to print, or to put into a spreadsheet."""

from __future__ import annotations

import re

_SEQUENCES = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[\]PX^_].*?(?:\x07|\x1b\\|$)|\x1b[@-~]?", re.DOTALL
)
_STYLES = re.compile(r"\x1b\[[0-9;]*m|\x1b\]8;[^\x00-\x1f\x7f-\x9f]*\x1b\\")
_MARKS = r"\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069"
_CONTROLS = re.compile(rf"[\x00-\x08\x0b-\x1f{_MARKS}]")
_IN_JSON = re.compile(rf"[{_MARKS}]")


def clean(text: str) -> str:
    """Return `text` without control sequences, control characters and text direction marks.

    Tabs and newlines are kept; other separators of lines are not.
    """
    return _CONTROLS.sub("", _SEQUENCES.sub("", text))


def has_controls(text: str) -> bool:
    """Return True if a text has characters that could affect a terminal, which `reveal` shows."""
    found = _CONTROLS.search(text)
    if found is not None and found[0] == "\r":
        return _CONTROLS.search(text.replace("\r\n", "\n")) is not None
    return found is not None


def keep_styles(text: str) -> str:
    """Return drawn text whose only controls are those of colours and links, which rich writes."""
    if "\x1b" not in text and not has_controls(text):
        return text
    pieces, end = [], 0
    for found in _STYLES.finditer(text):
        pieces += [clean(text[end : found.start()]), found[0]]
        end = found.end()
    return "".join([*pieces, clean(text[end:])])


def reveal(text: str) -> str:
    """Return `text` with an escape such as \\x1b for each character that `clean` removes.

    Lines end with newlines only.
    """
    return _CONTROLS.sub(_escape, text.replace("\r\n", "\n"))


def escape_json(json: str) -> str:
    """Return JSON in which characters that could affect a terminal are escaped.

    Its values stay the same.
    """
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", json)


def _escape(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "＝", "＋", "－", "＠")
"""Beginnings of a cell that a spreadsheet may run (OWASP, CSV injection)."""


def disarm(cell: str) -> str:
    """Return a text with an apostrophe in front if a spreadsheet would run it as a formula."""
    return f"'{cell}" if cell.startswith(FORMULA) else cell
