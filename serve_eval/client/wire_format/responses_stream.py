"""Assemble an answer from the events of a stream of /v1/responses.

The name of an event is in its `type`. The stream ends with the event that holds the whole answer,
and without [DONE]; a stream without that event holds no answer.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import Any, TypeVar

import msgspec

from serve_eval.client.wire_format import responses
from serve_eval.client.wire_format.bodies import Said, ToolCalls
from serve_eval.client.wire_format.refusal import UNREADABLE, InvalidResponse
from serve_eval.client.wire_format.response_head import BehindDone
from serve_eval.client.wire_format.sse import ERROR_EVENT, EventLines
from serve_eval.client.wire_format.stream import DONE, ERROR_TOLD

ENDS = {
    "response.completed": responses.COMPLETED,
    "response.incomplete": responses.INCOMPLETE,
    "response.done": None,
}
"""Events with the whole answer, and the status that each name implies."""
_FAILURES = frozenset({"error", "response.error", "response.failed", "response.cancelled"})
_TEXT, _REFUSAL = "response.output_text", "response.refusal"
_ARGUMENTS = "response.function_call_arguments"
_ITEM_BEGINS, _ITEM_ENDS = "response.output_item.added", "response.output_item.done"
_THOUGHTS = frozenset(
    {"response.reasoning_text", "response.reasoning_summary_text", "response.reasoning"}
)
_DELTA, _ENDED = ".delta", ".done"


class ResponsesEvent(msgspec.Struct):
    """The fields of an event that are read. Each but the name may be anything."""

    type: str
    delta: Any = None
    item: Any = None
    output_index: Any = None
    content_index: Any = None
    item_id: Any = None
    text: Any = None
    refusal: Any = None
    response: Any = None


_T = TypeVar("_T")
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
        self._text, self._thoughts, self._refusal = _Pieces(), _Pieces(), _Pieces()
        self._calls = ToolCalls(streamed=True)
        self._places: dict[object, int] = {}
        self._items: list[tuple[object, Any]] = []
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
        items = self._end.get("output") or _in_order(self._items)
        said = responses.read({**self._end, "output": items}, self._end_payload)
        pieces = self._join()
        if not self._end.get("output"):
            self._complete(said, pieces)
        if pieces.text and not _are_alike(said.text, pieces.text):
            # The pieces have the commentaries too, which are no part of the answer.
            bare = [{**one, "phase": None} for one in items if isinstance(one, dict)]
            _compare(responses.read_items(bare, self._end_payload).text, pieces.text)
        return said

    def _join(self) -> Said:
        said = Said(
            text=self._text.join(),
            reasoning=self._thoughts.join() or None,
            refusal=self._refusal.join() or None,
        )
        if self._calls:
            said.tool_calls, said.call_faults = self._calls.whole(), self._calls.faults()
        return said

    def _complete(self, said: Said, pieces: Said) -> None:
        """Add the content that came only in pieces. Raises InvalidResponse for half a call."""
        said.text = said.text or pieces.text
        said.reasoning = said.reasoning or pieces.reasoning
        said.refusal = said.refusal or pieces.refusal
        if len(pieces.tool_calls) > len(said.tool_calls):
            said.tool_calls, said.call_faults = pieces.tool_calls, pieces.call_faults
        if self._calls and not said.tool_calls:
            raise InvalidResponse("the stream has a call without a name")
        if said.tool_calls and said.finish_reason == "stop":
            said.finish_reason = "tool_calls"

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
        kind = event.type
        if kind in _FAILURES or self._fails:
            raise InvalidResponse(ERROR_TOLD, _describe_failure(event, payload))
        if kind in ENDS:
            self._end, self._end_payload = _read_end(event, payload), payload
            self.done = self.complete = True
        elif kind.endswith(_DELTA):
            self._take_piece(kind.removesuffix(_DELTA), event, now)
        elif kind == _ITEM_BEGINS:
            self._begin(event, now)
        elif kind == _ITEM_ENDS:
            self._items.append((event.output_index, event.item))
        elif kind == f"{_TEXT}{_ENDED}":
            self._text.end(event, event.text)
        elif kind == f"{_REFUSAL}{_ENDED}":
            self._refusal.end(event, event.refusal)

    def _take_piece(self, kind: str, event: ResponsesEvent, now: float) -> None:
        delta = event.delta if isinstance(event.delta, str) else ""
        if kind == _ARGUMENTS:
            self._calls.add([{"index": self._place(event), "function": {"arguments": delta}}])
            self._token(now)
        elif kind == _REFUSAL:
            self._refusal.add(event, delta)
        elif delta and (kind == _TEXT or kind in _THOUGHTS):
            (self._text if kind == _TEXT else self._thoughts).add(event, delta)
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


class _Pieces:
    """The pieces of texts, by the part of an item that they belong to.

    Parts may arrive interleaved. The event that ends a part has its whole text, which counts only
    if no pieces came, since servers number them differently.
    """

    def __init__(self) -> None:
        self._parts: dict[object, list[str]] = {}
        self._whole: dict[object, str] = {}

    def add(self, event: ResponsesEvent, delta: str) -> None:
        self._parts.setdefault(_part_of(event), []).append(delta)

    def end(self, event: ResponsesEvent, text: object) -> None:
        if isinstance(text, str):
            self._whole[_part_of(event)] = text

    def join(self) -> str:
        if not self._parts:
            return "".join(_in_order(self._whole.items()))
        return "".join("".join(pieces) for pieces in _in_order(self._parts.items()))


def _part_of(event: ResponsesEvent) -> object:
    numbers = event.output_index, event.content_index or 0
    return numbers if all(isinstance(one, int) for one in numbers) else str(event.item_id)


def _in_order(numbered: Iterable[tuple[object, _T]]) -> list[_T]:
    """Return the values in order of their indices, or of arrival if one lacks an index."""
    found = list(numbered)
    with suppress(TypeError):
        found.sort(key=lambda one: one[0])  # type: ignore[arg-type, return-value]
    return [value for _, value in found]


def _read_end(event: ResponsesEvent, payload: bytes) -> dict[str, Any]:
    """Return the response of the event that ends an answer, with the status of its name.

    Some servers leave the status out, and some call a cut answer completed.
    """
    if not isinstance(event.response, dict):
        raise InvalidResponse("the event that ends the answer does not hold it", payload)
    named, told = ENDS[event.type], event.response.get("status")
    cut = named == responses.INCOMPLETE and told == responses.COMPLETED
    return {**event.response, "status": named} if told is None or cut else event.response


def _describe_failure(event: ResponsesEvent, payload: bytes) -> bytes:
    """Return the JSON that says why an answer failed."""
    response = event.response
    error = response.get("error") if isinstance(response, dict) else None
    return payload if error is None else msgspec.json.encode({"error": error})


def _are_alike(whole: str, pieces: str) -> bool:
    """Return True if two texts differ only in spaces at their ends.

    trtllm-serve strips the whole text and not its pieces.
    """
    return whole.strip() == pieces.strip()


def _compare(whole: str, pieces: str) -> None:
    """Raise InvalidResponse if the pieces of a text are not the text."""
    if not _are_alike(whole, pieces):
        raise InvalidResponse(
            f"the stream has two texts: {pieces[:40]!r} in pieces and {whole[:40]!r} as a whole"
        )
