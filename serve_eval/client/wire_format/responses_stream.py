"""Assemble an answer from the events of a stream of /v1/responses.

The name of an event is in its `type`. The stream ends with the event that holds the whole answer,
and without [DONE]; a stream without that event holds no answer.
"""

from __future__ import annotations

from typing import Any

import msgspec

from serve_eval.client.wire_format import responses
from serve_eval.client.wire_format.bodies import Said, ToolCalls
from serve_eval.client.wire_format.refusal import UNREADABLE, InvalidResponse
from serve_eval.client.wire_format.response_head import BehindDone
from serve_eval.client.wire_format.sse import ERROR_EVENT, EventLines
from serve_eval.client.wire_format.stream import DONE, ERROR_TOLD

ENDS = frozenset({"response.completed", "response.incomplete", "response.done"})
_FAILURES = frozenset({"error", "response.error", "response.failed", "response.cancelled"})
_TEXT, _REFUSAL = "response.output_text.delta", "response.refusal.delta"
_ARGUMENTS = "response.function_call_arguments.delta"
_ITEM_BEGINS, _ITEM_ENDS = "response.output_item.added", "response.output_item.done"
_THOUGHTS = frozenset(
    {
        "response.reasoning_text.delta",
        "response.reasoning_summary_text.delta",
        "response.reasoning.delta",
    }
)


class ResponsesEvent(msgspec.Struct):
    """The fields of an event that are read. Each but the name may be anything."""

    type: str
    delta: Any = None
    item: Any = None
    output_index: Any = None
    item_id: Any = None
    response: Any = None


_read = msgspec.json.Decoder(ResponsesEvent).decode


class ResponsesStream:
    """Takes the bytes of a stream and the times of their arrival (any clock, in seconds).

    It has the properties of `StreamedAnswer`. `done` and `complete`: the event that ends the answer
    was read.
    """

    def __init__(self, behind: BehindDone | None = None) -> None:
        self.done = self.complete = False
        self.behind = behind
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.heard_at = 0.0
        self._lines = EventLines()
        self._unfinished = b""
        self._fails = False
        self._text: list[str] = []
        self._thoughts: list[str] = []
        self._refusal: list[str] = []
        self._calls = ToolCalls(streamed=True)
        self._places: dict[object, int] = {}
        self._items: list[Any] = []
        self._end: dict[str, Any] | None = None
        self._end_payload = b""

    @property
    def wanting(self) -> bool:
        """True if further data is still read."""
        return not self.done or (self.behind is not None and self.behind.open)

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes of the stream. Raises InvalidResponse for anything but events of an answer."""
        if self.done and self.behind is not None:
            self.behind.count(len(data))
        for payload in self._lines.feed(data):
            self._feed(payload, now)

    def finish(self) -> Said:
        """Return the whole answer at the end of the stream. Raises InvalidResponse if it has none.

        The event that ends it has the whole answer at most servers. The pieces count if it has no
        output.
        """
        for payload in self._lines.close():
            self._feed(payload, self.last_at or 0.0)
        if self._fails:
            raise InvalidResponse(ERROR_TOLD)
        if self._unfinished:
            raise InvalidResponse("not a stream of /v1/responses", self._unfinished)
        if self._end is None:
            raise InvalidResponse("the stream ended without an event that ends the answer")
        pieces = self._join()
        if not self._end.get("output"):
            told = {**self._end, "output": self._items}
            said = responses.read(told, self._end_payload)
            return said if self._items else self._complete(said, pieces)
        said = responses.read(self._end, self._end_payload)
        _compare(said.text, pieces.text)
        return said

    def _join(self) -> Said:
        said = Said(
            text="".join(self._text),
            reasoning="".join(self._thoughts) or None,
            refusal="".join(self._refusal) or None,
        )
        if self._calls:
            said.tool_calls, said.call_faults = self._calls.whole(), self._calls.faults()
        return said

    def _complete(self, said: Said, pieces: Said) -> Said:
        """Return an answer without items with what the pieces say."""
        said.text = said.text or pieces.text
        said.reasoning, said.refusal = pieces.reasoning, pieces.refusal
        said.tool_calls, said.call_faults = pieces.tool_calls, pieces.call_faults
        if said.tool_calls and said.finish_reason == "stop":
            said.finish_reason = "tool_calls"
        return said

    def _feed(self, payload: bytes, now: float) -> None:
        if self.done:
            if self.behind is not None and self.behind.open and payload:
                self.behind.take(payload)
        elif payload or self._unfinished:
            self._take(payload, now)

    def _take(self, payload: bytes, now: float) -> None:
        """Take one data line: an event or a part of one."""
        if payload is ERROR_EVENT:
            self._fails = True
            return
        if self._unfinished:
            if not payload:
                raise InvalidResponse("not a stream of /v1/responses", self._unfinished)
            payload = self._unfinished + b"\n" + payload
        if payload == DONE:
            return
        try:
            event = _read(payload)
        except msgspec.ValidationError as error:
            raise InvalidResponse("not a stream of /v1/responses", payload) from error
        except UNREADABLE as error:
            if payload[:1] != b"{" or self._fails:
                raise InvalidResponse("not a stream of /v1/responses", payload) from error
            self._unfinished = payload
            return
        self._unfinished = b""
        self.heard_at = now
        self._take_event(event, payload, now)

    def _take_event(self, event: ResponsesEvent, payload: bytes, now: float) -> None:
        kind, delta = event.type, event.delta if isinstance(event.delta, str) else ""
        if kind in _FAILURES or self._fails:
            raise InvalidResponse(ERROR_TOLD, _told_of(event, payload))
        if kind in ENDS:
            if not isinstance(event.response, dict):
                raise InvalidResponse("the event that ends the answer does not hold it", payload)
            self._end, self._end_payload = event.response, payload
            self.done = self.complete = True
        elif kind == _TEXT:
            self._add(self._text, delta, now)
        elif kind in _THOUGHTS:
            self._add(self._thoughts, delta, now)
        elif kind == _REFUSAL:
            self._refusal.append(delta)
        elif kind == _ARGUMENTS:
            self._calls.add([{"index": self._place(event), "function": {"arguments": delta}}])
            self._token(now)
        elif kind == _ITEM_BEGINS:
            self._begin(event, now)
        elif kind == _ITEM_ENDS:
            self._items.append(event.item)

    def _add(self, pieces: list[str], delta: str, now: float) -> None:
        if delta:
            pieces.append(delta)
            self._token(now)

    def _begin(self, event: ResponsesEvent, now: float) -> None:
        """Take the beginning of an item; that of a call holds its name."""
        item = event.item
        if not isinstance(item, dict) or item.get("type") != "function_call":
            return
        function = {"name": item.get("name"), "arguments": item.get("arguments") or ""}
        place = self._place(event, item)
        self._calls.add([{"index": place, "id": item.get("call_id"), "function": function}])
        self._token(now)

    def _place(self, event: ResponsesEvent, item: dict[str, Any] | None = None) -> int:
        """Return the number of a call among the calls, by the index or the id of its item."""
        name = event.output_index
        if name is None:
            name = event.item_id if item is None else item.get("id")
        return self._places.setdefault(name, len(self._places))

    def _token(self, now: float) -> None:
        self.last_at = now
        if self.first_at is None:
            self.first_at = now


def _told_of(event: ResponsesEvent, payload: bytes) -> bytes:
    """Return the JSON that says why an answer failed."""
    response = event.response
    error = response.get("error") if isinstance(response, dict) else None
    return payload if error is None else msgspec.json.encode({"error": error})


def _compare(whole: str, pieces: str) -> None:
    """Raise InvalidResponse if the pieces of a text are not the text; spaces do not count.

    trtllm-serve strips the whole text and not its pieces.
    """
    if pieces and whole.strip() != pieces.strip():
        raise InvalidResponse(
            f"the stream has two texts: {pieces[:40]!r} in pieces and {whole[:40]!r} as a whole"
        )
