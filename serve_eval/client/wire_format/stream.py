"""Assemble an answer from the chunks of an event stream. Pure: bytes and times in, `Said` out."""

from __future__ import annotations

from serve_eval.client.wire_format import fields, wire
from serve_eval.client.wire_format.calls import ToolCalls
from serve_eval.client.wire_format.server_timing import BehindDone
from serve_eval.client.wire_format.sse import EventLines
from serve_eval.client.wire_format.wire import (
    InvalidResponse,
    LostStream,
    Said,
    WireChoice,
    WireDelta,
)

DONE = b"[DONE]"
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
        self._stop: str | None = None
        self._tokens_per_step: float | None = None
        self._usage: object = None
        self._fingerprint: str | None = None
        self._chunks = 0
        self._id: str | None = None
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
            raise InvalidResponse("not an OpenAI stream", self._unfinished)
        if not self._finish:
            if self.done and not self._chunks:
                raise LostStream("the stream held [DONE] but no answer")
            raise InvalidResponse("the stream ended without a finish_reason")
        return Said(
            id=self._id,
            text="".join(self._text),
            reasoning="".join(self._reasoning) or None,
            refusal="".join(self._refusal) or None,
            finish_reason=wire.read_finish_reason(self._finish),
            stop_reason=self._stop,
            usage=fields.usage(self._usage),
            tokens_per_step=self._tokens_per_step,
            tool_calls=self._calls.whole(),
            call_faults=self._calls.faults() if self._calls else (),
            fingerprint=self._fingerprint,
        )

    def _take(self, payload: bytes, now: float) -> None:
        """Take one data line: a chunk, a part of one, or the end.

        An empty line ends an unfinished event.
        """
        if self._unfinished:
            if not payload:
                raise InvalidResponse("not an OpenAI stream", self._unfinished)
            payload = self._unfinished + b"\n" + payload
        elif payload == DONE:
            self.done = True
            return
        try:
            parsed = wire.read_body(payload)
        except wire.UNREADABLE as error:
            self._hold(payload, error)
            return
        self._unfinished, self._lines_of_it = b"", 0
        wire.refuse_error(parsed, payload)
        if parsed.usage:
            self._usage = parsed.usage
            self._fingerprint = fields.fingerprint(parsed.system_fingerprint)
        if self._id is None:
            self._id = fields.answer_id(parsed.id)
        if parsed.choices:
            self.heard_at = now
            for choice in parsed.choices:
                if not choice.index:
                    self._choose(choice, parsed.id, now)

    def _hold(self, payload: bytes, error: Exception) -> None:
        """Keep a line whose JSON may continue in the next one. Raises InvalidResponse otherwise."""
        self._lines_of_it += 1
        if payload[:1] != b"{" or self._lines_of_it > MAX_LINES:
            raise InvalidResponse("not an OpenAI stream", payload) from error
        self._unfinished = payload

    def _choose(self, choice: WireChoice, chunk_id: object, now: float) -> None:
        """Take a piece of the answer.

        Raises InvalidResponse for a piece after the end, or of another answer.
        """
        self._chunks += 1
        if choice.delta is not None:
            told = self._append(choice.delta, now)
        elif told := bool(choice.text):
            self._text.append(choice.text or "")
            self._token(now)
        if told and self.complete:  # ignoring it would score a mixture of two answers
            raise InvalidResponse("the answer continues after its finish_reason")
        if (told or choice.finish_reason) and not (self._one_id and chunk_id == self._last_id):
            self._see_id(chunk_id)
        if choice.finish_reason:
            self._finish, self.complete = choice.finish_reason, True
            self._stop = fields.stop_string(choice.stop_reason)
            self._tokens_per_step = fields.tokens_per_step(choice.avg_decoded_tokens_per_iter)

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
        thought = delta.reasoning_content or delta.reasoning
        if delta.content:
            self._text.append(delta.content)
        if thought:
            self._reasoning.append(thought)
        if delta.refusal:
            self._refusal.append(delta.refusal)
        if delta.tool_calls:
            self._calls.add(delta.tool_calls)
        if delta.content or thought or delta.tool_calls:
            self._token(now)
            return True
        return bool(delta.refusal)

    def _token(self, now: float) -> None:
        self.last_at = now
        if self.first_at is None:
            self.first_at = now
