"""Assemble an answer from the chunks of an event stream.

A healthy stream has two: the one with the role, and the one with the finish_reason. If its text is
empty, it may be in fields that only others use.
"""

from __future__ import annotations

from contextlib import suppress
from itertools import pairwise

import msgspec

from serve_eval.client.wire_format import bodies, odd_bodies, refusal, wire
from serve_eval.client.wire_format.bodies import (
    USUAL_OBJECTS,
    Body,
    Said,
    ToolCalls,
    WireChoice,
    WireDelta,
    WireUsage,
    read_chunk,
)
from serve_eval.client.wire_format.finish_reasons import BREAK, PENDING, meaning
from serve_eval.client.wire_format.odd_bodies import refuse_named, refuse_signs
from serve_eval.client.wire_format.refusal import InvalidResponse, LostStream
from serve_eval.client.wire_format.response_head import BehindDone
from serve_eval.client.wire_format.sse import ERROR_EVENT, EventLines

DONE = b"[DONE]"
ERROR_TOLD = "the stream has an event that names an error"
_encode = msgspec.json.Encoder().encode
MAX_LINES = 100
"""Data lines that one chunk may span; every known server writes one."""


class StreamedAnswer:
    """Takes the bytes of a stream and the times of their arrival (any clock, in seconds).

    `done`: [DONE] was read, and nothing after it counts. `complete`: a finish_reason was read, so
    that the answer is whole however the stream ends. `first_at` and `last_at` are the times of the
    first and the last token, or None. `heard_at` is the time of the last chunk with a choice, with
    or without a token, or 0. `behind` receives what follows [DONE].
    """

    def __init__(self, behind: BehindDone | None = None) -> None:
        self.done = self.complete = False
        self.behind = behind
        self.first_at: float | None = None
        self.last_at: float | None = None
        self.heard_at = 0.0
        self._lines = EventLines()
        self._unfinished = b""  # data lines of one event whose JSON continues in the next line
        self._lines_of_it = 0
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._refusal: list[str] = []
        self._calls = ToolCalls(streamed=True)
        self._finish: str | None = None
        self._server_finish: str | None = None
        self._pending: str | None = None
        self._aside = SetAside()
        self._stop: str | None = None
        self._tokens_per_step: float | None = None
        self._usage: WireUsage | None = None
        self._fingerprint: str | None = None
        self._began = False
        self._id: str | None = None
        self._object: str | None = None
        self._last_id: object = None
        self._ids: set[str] = set()
        self._one_id = False

    def feed(self, data: bytes, now: float) -> None:
        """Take bytes of the stream.

        Raises InvalidResponse for anything but chunks of an answer, such as an error object.
        """
        if self.done and self.behind is not None:
            self.behind.count(len(data))
        for payload in self._lines.feed(data):
            if not payload and not self._unfinished:
                continue  # every second payload is the blank line after an event
            if not self.done:
                self._take(payload, now)
            elif self.behind is not None and self.behind.open:
                self.behind.take(payload)
            else:
                return

    @property
    def wanting(self) -> bool:
        """True if further data is still read."""
        return not self.done or (self.behind is not None and self.behind.open)

    def finish(self) -> Said:
        """Return the whole answer at the end of the stream.

        Raises InvalidResponse if it has none, LostStream if the stream held only [DONE].
        """
        for payload in self._lines.close():
            if payload and not self.done:
                self._take(payload, self.last_at or 0.0)
        if self._unfinished:
            self._join(b"")
        if not self._finish:
            self._refuse_unfinished()
        text, reasoning = "".join(self._text), "".join(self._reasoning)
        if not text and not self._calls:
            text, thoughts = self._aside.read(self._calls)
            reasoning = reasoning or thoughts
            if text and self.first_at is None:
                self.first_at, self.last_at = self._aside.first_at, self._aside.last_at
        else:
            self._aside.compare(text)
        usage = self._usage
        if usage is None or usage.completion_tokens is None:
            usage = self._aside.find_usage() or usage
        return Said(
            id=self._id,
            text=text,
            reasoning=reasoning or None,
            refusal="".join(self._refusal) or None,
            finish_reason=self._finish,
            stop_reason=self._stop,
            usage=bodies.usage(usage),
            tokens_per_step=self._tokens_per_step,
            tool_calls=self._calls.whole(),
            call_faults=self._calls.faults() if self._calls else (),
            fingerprint=self._fingerprint,
            server_finish=self._server_finish,
        )

    def _refuse_unfinished(self) -> None:
        """Raise the reason for which a stream without a finish_reason holds no answer."""
        if self.done and not self._began:
            raise LostStream("the stream held [DONE] but no answer")
        if self._pending:
            wire.read_finish_reason(self._pending)
        raise InvalidResponse("the stream ended without a finish_reason")

    def _take(self, payload: bytes, now: float) -> None:
        """Take one data line: a chunk, a part of one, or the end."""
        if self._unfinished:
            payload = self._join(payload)
        try:
            parsed = read_chunk(payload)
        except refusal.UNREADABLE as error:
            if (mended := self._mend(payload, error)) is None:
                return
            parsed = mended
        self._unfinished = b""
        choices = parsed.choices
        if not (
            choices
            and parsed.error is None
            and parsed.object == self._object  # quicker than the set
            and parsed.usage is None
            and self._id is not None
        ):
            self._take_frame(parsed, payload, now)
        if choices:
            self.heard_at = now
            choice = choices[0] if len(choices) == 1 else wire.pick_first(choices, payload)
            if choice is not None and not choice.index:
                self._choose(choice, parsed.id, payload, now)

    def _join(self, payload: bytes) -> bytes:
        """Return a line with the lines of the same event before it.

        An empty line ends an unfinished event. Raises InvalidResponse for one that is no JSON, and
        for an event that is called an error, with its data.
        """
        before = self._unfinished
        if before is ERROR_EVENT:
            raise InvalidResponse(ERROR_TOLD, payload or None)
        if before and (not payload or payload is ERROR_EVENT):
            raise InvalidResponse("not an OpenAI stream", before)
        return before + b"\n" + payload if before else payload

    def _mend(self, payload: bytes, error: Exception) -> Body | None:
        """Return a chunk whose fields have other types, or None if its JSON may continue.

        Raises InvalidResponse for anything else. An error event is kept until its data came.
        """
        if payload == DONE:
            self.done = True
            return None
        if isinstance(error, msgspec.ValidationError):
            with suppress(*refusal.UNREADABLE, odd_bodies.NoObject):
                return odd_bodies.mend(payload)
        self._lines_of_it = self._lines_of_it + 1 if self._unfinished else 1
        odd = payload[:1] != b"{" and payload is not ERROR_EVENT
        if odd or self._lines_of_it > MAX_LINES:
            raise InvalidResponse("not an OpenAI stream", payload) from error
        self._unfinished = payload
        return None

    def _take_frame(self, parsed: Body, payload: bytes, now: float) -> None:
        """Take what an event holds around its choices. Raises InvalidResponse for an error."""
        if parsed.error is not None or parsed.object not in USUAL_OBJECTS:
            odd_bodies.refuse_error(parsed, payload, answered=bool(parsed.choices))
        self._object = parsed.object
        usage = parsed.usage
        if not parsed.choices and (usage is None or not self.complete):
            odd_bodies.refuse_signs(payload)
        if usage is not None:
            if usage.completion_tokens is None:
                self._aside.add(payload, now)
            else:
                self._usage = usage
            self._fingerprint = bodies.fingerprint(parsed.system_fingerprint)
        elif not parsed.choices:
            odd_bodies.refuse_named(payload)
            self._aside.add(payload, now)
        if self._id is None:
            self._id = bodies.answer_id(parsed.id)

    def _choose(self, choice: WireChoice, chunk_id: object, payload: bytes, now: float) -> None:
        """Take a piece of the answer.

        Raises InvalidResponse for an error, a piece after the end, or one of another answer.
        """
        self._began = True
        delta = choice.delta
        if delta is not None:
            told = self._append(delta, now)
        elif told := bool(choice.text):
            self._text.append(choice.text or "")
            self._token(now)
        reason = choice.finish_reason
        if not told:
            self._set_aside(choice, payload, now)
        elif choice.error is not None:
            odd_bodies.refuse_choice_error(choice, payload, answered=True)
        if told:
            if self.complete:  # ignoring it would score a mixture of two answers
                raise InvalidResponse("the answer continues after its finish_reason")
        elif not reason:
            return
        if not (self._one_id and chunk_id == self._last_id):
            self._see_id(chunk_id)
        if reason:
            self._end(reason, choice)

    def _set_aside(self, choice: WireChoice, payload: bytes, now: float) -> None:
        """Keep a piece without content. Raises InvalidResponse for an error instead of one."""
        odd_bodies.refuse_choice_error(choice, payload, answered=False)
        if choice.finish_reason:
            odd_bodies.refuse_signs(payload)
        self._aside.add(payload, now, choice)

    def _end(self, reason: str, choice: WireChoice) -> None:
        """Take a finish_reason. Raises InvalidResponse for one that means no answer."""
        meant = reason if reason == "stop" else meaning(reason)
        if meant == PENDING:
            self._pending = reason
            return
        if meant == BREAK:
            wire.read_finish_reason(reason)
        self._finish, self.complete = meant, True
        self._server_finish = None if meant == reason else reason
        stop = choice.matched_stop if choice.stop_reason is None else choice.stop_reason
        self._stop = bodies.stop_string(stop)
        self._tokens_per_step = bodies.tokens_per_step(choice.avg_decoded_tokens_per_iter)

    def _see_id(self, told: object) -> None:
        """Check that the pieces belong to one answer, by their ids.

        All pieces have one id, or each has its own (trtllm-serve did so). Raises InvalidResponse
        for the ids of several answers.
        """
        if not told:
            return
        name = told if isinstance(told, str) else repr(told)
        if told == self._last_id and len(self._ids) == 1:
            self._one_id = True
        elif self._one_id or name in self._ids:
            raise InvalidResponse("one stream holds pieces of several answers, by their ids")
        self._ids.add(name)
        self._last_id = told

    def _append(self, delta: WireDelta, now: float) -> bool:
        """Return True if a piece has any content."""
        content, thought = delta.content, delta.reasoning_content or delta.reasoning
        if delta.refusal:
            self._refusal.append(delta.refusal)
        if content:
            self._text.append(content)
        if thought:
            self._reasoning.append(thought)
        if delta.tool_calls:
            self._calls.add(delta.tool_calls)
        if delta.error is not None and odd_bodies.is_error(delta.error, answered=True):
            raise InvalidResponse("an error within a piece of the answer", _encode(delta.error))
        if content or thought or delta.tool_calls:
            self.last_at = now
            if self.first_at is None:
                self.first_at = now
            return True
        return bool(delta.refusal)

    def _token(self, now: float) -> None:
        self.last_at = now
        if self.first_at is None:
            self.first_at = now


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
            if (found := bodies.find_usage(odd_bodies.read_json(payload))) is not None:
                return found
        return None
