"""Make the ids of a session's requests and find them in replies. Pure."""

from __future__ import annotations

import uuid

ID_CHARACTERS = 36
"""Length of a request id, a UUID. An id that a server shortened names no request."""


class RequestIds:
    """Make ids that begin with `own` and count up; `made` is their number.

    The ids are UUIDs because llama-cpp-python refuses others.
    """

    def __init__(self) -> None:
        self.own, self.made = str(uuid.uuid4())[:-12], 0

    def new(self) -> str:
        """Return the id of the next request."""
        self.made += 1
        return f"{self.own}{self.made:012x}"

    def find_named(self, told: str) -> str | None:
        """Return the id of one of our requests in a reply's text, or None."""
        at = told.find(self.own)
        return None if at < 0 or len(told) < at + ID_CHARACTERS else told[at : at + ID_CHARACTERS]
