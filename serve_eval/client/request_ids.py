"""Ids of the requests of one session, and how to find them in an answer. Pure."""

from __future__ import annotations

import uuid

ID_CHARACTERS = 36
"""Of the id of a request, a UUID; servers that shorten it name no request."""


class RequestIds:
    """Makes ids that begin with `own` and count up. They are UUIDs: llama-cpp-python refuses
    others.
    """

    def __init__(self) -> None:
        self.own, self._made = str(uuid.uuid4())[:-12], 0

    def new(self) -> str:
        """Return the id of the next request."""
        self._made += 1
        return f"{self.own}{self._made:012x}"

    def find_named(self, told: str) -> str | None:
        """Return the id of a request of ours in a reply's text; None where it names none."""
        at = told.find(self.own)
        return None if at < 0 or len(told) < at + ID_CHARACTERS else told[at : at + ID_CHARACTERS]
