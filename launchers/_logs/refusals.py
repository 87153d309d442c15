"""Detect a first completion that the server refuses permanently."""

from __future__ import annotations

import re

from serve_eval.launchers._logs.causes import find_known

SAME = 3
"""Number of equal refusals in a row that are final."""
_FORM = re.compile(
    r"(?i)extra_forbidden|extra inputs are not permitted|field required|input should be|validation"
    r" error|unknown field"
    r"|unrecognized request|not supported|unsupported|bad request.*(field|parameter)|method not"
    r" allowed"
)
_LATER = (408, 409, 425, 429, 503)
"""Statuses that ask for a retry."""


class Refusals:
    """Counts equal refusals in a row."""

    def __init__(self) -> None:
        self._last: str | None = None
        self._count = 0

    def permanent(self, status: int, text: str) -> bool:
        """Record a response; return True after three equal permanent refusals in a row."""
        found, kind = find_known(text), None
        if found is not None and found.refuses and status >= 400 and status not in _LATER:
            kind = found.told
        elif about_its_form(status, text):
            kind = f"{status} {text}"
        self._count = (
            self._count + 1 if kind is not None and kind == self._last else int(kind is not None)
        )
        self._last = kind
        return self._count >= SAME


def about_its_form(status: int, text: str) -> bool:
    """Return True if the status shows that the request itself can never be served."""
    return (
        400 <= status < 500
        and status not in _LATER
        and (status in (405, 422) or bool(_FORM.search(text)))
    )
