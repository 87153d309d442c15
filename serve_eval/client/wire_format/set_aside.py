"""Keep the events of a stream that hold no piece of its text, until it is known if all came. Pure.

A healthy stream has two: the one with the role, and the one with the finish_reason. If its text is
empty, it may be in fields that only others use.
"""

from __future__ import annotations

from itertools import pairwise

from serve_eval.client.wire_format import fields, odd_bodies
from serve_eval.client.wire_format.bodies import WireChoice, WireUsage
from serve_eval.client.wire_format.calls import ToolCalls
from serve_eval.client.wire_format.invalid import InvalidResponse
from serve_eval.client.wire_format.told_errors import refuse_named, refuse_signs


class SetAside:
    """Events with the times of their arrival, and the texts in the fields of whole answers."""

    def __init__(self) -> None:
        self._events: list[tuple[bytes, float]] = []
        self._beside: list[str] = []
        self.first_at: float | None = None
        self.last_at: float | None = None

    def add(self, payload: bytes, now: float, choice: WireChoice | None = None) -> None:
        """Keep an event."""
        self._events.append((payload, now))
        if choice is not None and (choice.text or choice.message is not None):
            message = choice.message
            beside = choice.text or (message and message.content)
            if beside:
                self._beside.append(beside)

    def read(self, calls: ToolCalls) -> tuple[str, str]:
        """Return the text and the thoughts that the events hold, and add their calls to `calls`.

        Raises InvalidResponse for an error, if a field of unknown meaning holds a text, or if it is
        not clear whether each text continues or replaces the one before it.
        """
        pieces, thoughts = list[str](), list[str]()
        for payload, now in self._events:
            refuse_signs(payload)
            refuse_named(payload)
            said = odd_bodies.find_said(payload)
            calls.add(said.calls)
            thoughts.append(said.thoughts)
            if said.text:
                pieces.append(said.text)
                self.first_at, self.last_at = self.first_at or now, now
                places = said.places
        grows = all(b.startswith(a) for a, b in pairwise(pieces))
        if len(pieces) > 1 and grows:
            raise InvalidResponse(
                f"the pieces in the field {places[0]!r} of the stream may be the rest of the text,"
                " or each the whole of it",
                self._events[-1][0],
            )
        return "".join(pieces), "".join(thoughts)

    def compare(self, text: str) -> None:
        """Raise InvalidResponse if another field has a piece that the text does not have."""
        for piece in self._beside:
            if piece.strip() not in text:
                raise InvalidResponse(
                    f"the stream has two texts, and {piece[:40]!r} is in one of them only"
                )

    def find_usage(self) -> WireUsage | None:
        """Return the last token counts in the events."""
        for payload, _ in reversed(self._events):
            if (found := fields.find_usage(odd_bodies.read_json(payload))) is not None:
                return found
        return None
