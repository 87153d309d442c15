"""Read the response to one request leniently, also the thoughts that precede its answer.

A short answer of such a model ends within its thoughts. It is then neither empty nor wrong.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from serve_eval.checks.row import CheckOutcome, CheckResult, SentRequest
from serve_eval.client.attempts import outcome
from serve_eval.client.wire_format.bodies import CLOSE, OPEN, split_thinking
from serve_eval.client.wire_format.finish_reasons import BREAK, PENDING, meaning
from serve_eval.client.wire_format.refusal import UNREADABLE, Mask, describe, shorten
from serve_eval.client.wire_format.sse import ERROR_EVENT, EventLines
from serve_eval.client.wire_format.wire import EVENT_STREAM

_REFUSALS = frozenset({400, 404, 405, 413, 415, 422, 501})
_REFUSED_AS_500 = re.compile(
    r"only supports single string prompt|context server returned \d+ choices"
    r"|not (?:yet |currently )?(?:supported|implemented)|unsupported param|requires --\w"
    r"|only one completion choice",
    re.IGNORECASE,
)
_SHOWN = 160
"""Characters of a server's message that a row shows."""


class AnswerChoice(NamedTuple):
    """One choice of a response, with its `number` from 0.

    `thoughts` is the reasoning that the server keeps apart from `text`, and `finish` what its
    finish_reason means. `raw` is the choice as received.
    """

    number: int
    text: str
    thoughts: str
    finish: str | None
    raw: Mapping[str, Any]

    @property
    def said(self) -> str:
        """The whole generated text."""
        return self.thoughts + self.text


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The response to one request.

    `status` is 0 if no response began. `problem` says why the response is incomplete ("" if it is
    complete); `cut_by_us` is set if it was longer than the read limit. `seconds` runs from before
    the connection was made to the end. `mask` removes secrets that the pieces of a stream form
    together. `starting` is set if the server reports that it is loading its model.
    """

    sent: SentRequest
    seconds: float
    status: int = 0
    content_type: str = ""
    content: bytes = b""
    problem: str = ""
    cut_by_us: bool = False
    mask: Mask = str
    starting: bool = False

    @cached_property
    def parsed(self) -> Mapping[str, Any]:
        """The JSON object of the body; empty if the body is not one."""
        try:
            found = msgspec.json.decode(self.content)
        except UNREADABLE:
            return {}
        return found if isinstance(found, dict) else {}

    @cached_property
    def choices(self) -> list[AnswerChoice]:
        """The choices of a complete response; empty if it has none."""
        if self.status != 200 or self.problem or self.parsed.get("error"):
            return []
        return [_choice(raw) for raw in _as_list(self.parsed.get("choices"))]

    @property
    def answered(self) -> bool:
        return bool(self.choices)

    @property
    def streams(self) -> bool:
        return self.content_type.lower().startswith(EVENT_STREAM)

    @property
    def first(self) -> AnswerChoice:
        """The first choice. Valid only if `answered`."""
        return self.choices[0]

    def tokens(self, kind: str = "completion_tokens") -> int | None:
        """Return a token count of `usage`, or None if the server does not report it."""
        return count(self.parsed.get("usage"), kind)

    @property
    def shown_tokens(self) -> int | None:
        """The generated tokens that are not hidden thoughts, or None if they are not reported."""
        return count_shown(self.parsed.get("usage"))

    @property
    def wraps_a_refusal(self) -> bool:
        """True if HTTP 500 stands for a refusal.

        The orchestrator of trtllm-serve forwards a 400 of its worker as a 500, and reports what it
        does not support itself in the same way.
        """
        message = describe(self.content)
        wrapped = not outcome.worth_retrying(500, message) or _REFUSED_AS_500.search(message)
        return self.status == 500 and bool(wrapped)

    @property
    def refused(self) -> bool:
        """True if the server says that it does not support the request."""
        return not self.problem and (self.status in _REFUSALS or self.wraps_a_refusal)

    @property
    def told(self) -> str:
        """A description of what came instead of an answer."""
        if not self.status:
            return self.problem
        if self.problem:
            return f"HTTP {self.status}, then {self.problem}"
        if self.status == 200 and not self.content:
            return "HTTP 200 with an empty body"
        what = " without an answer" if self.status == 200 else ""
        return f"HTTP {self.status}{what}: {short(shorten(describe(self.content)))}"

    def instead(self) -> CheckResult:
        """Return the row of a check whose request was not answered."""
        if self.refused:
            return CheckResult(
                outcome=CheckOutcome.UNSUPPORTED, told=f"refused: {self.told}", sent=self.sent
            )
        return CheckResult(outcome=CheckOutcome.FAIL, told=self.told, sent=self.sent)


class NotAnswered(Exception):
    """A check's request was not answered."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.told)
        self.answer = answer


class Stream(NamedTuple):
    """An assembled event stream.

    `broken` is the first data line that is not a JSON object. `error` is an error that was sent as
    an event. `done`: the stream ended with [DONE]. `chunks` counts the pieces of the answer.
    `logprobs` are the log-probabilities of its tokens, in the form of either route.
    """

    text: str
    thoughts: str
    finish: str | None
    usage: object
    chunks: int
    done: bool
    broken: str | None
    error: str | None
    logprobs: tuple[object, ...] = ()

    @property
    def said(self) -> str:
        return self.thoughts + self.text


def read_stream(answer: Answer) -> Stream:
    """Return what the events of a response contain."""
    lines = EventLines()
    payloads = [payload for payload in [*lines.feed(answer.content), *lines.close()] if payload]
    text, thoughts = "", ""
    values: list[object] = []
    finish = usage = broken = error = None
    chunks = 0
    for payload in payloads:
        if payload == b"[DONE]":
            continue
        if payload == ERROR_EVENT:
            error = error or "an event that is called an error"
            continue
        try:
            event = msgspec.json.decode(payload)
        except UNREADABLE:
            event = None
        if not isinstance(event, dict):
            broken = broken or payload.decode(errors="replace")
            continue
        if event.get("error") or "error" in str(event.get("object")).lower():
            error = error or describe(payload)
        usage = event.get("usage") or usage
        for raw in _as_list(event.get("choices")):
            one, usage = _choice(raw), raw.get("usage") or usage
            if raw.get("error"):
                error = error or describe(payload)
            chunks += 1
            values += list_logprobs(raw.get("logprobs"))
            text, thoughts, finish = text + one.text, thoughts + one.thoughts, one.finish or finish
    text, thoughts = answer.mask(text), answer.mask(thoughts)
    done = b"[DONE]" in payloads[-1:]
    return Stream(text, thoughts, finish, usage, chunks, done, broken, error, tuple(values))


def list_logprobs(told: object) -> list[object]:
    """Return the values of `logprobs` of a choice or a chunk, in the form of either route."""
    if not isinstance(told, dict):
        return []
    content, values = told.get("content"), told.get("token_logprobs")
    if isinstance(content, list):
        return [one.get("logprob") if isinstance(one, dict) else None for one in content]
    return list(values) if isinstance(values, list) else []


def count(usage: object, kind: str) -> int | None:
    """Return a token count, or None if it is missing or invalid."""
    told = usage.get(kind) if isinstance(usage, dict) else None
    return told if type(told) is int and told >= 0 else None


def count_thoughts(usage: object) -> int:
    """Return the generated tokens that are thoughts, as far as the server counts them."""
    details = usage.get("completion_tokens_details") if isinstance(usage, dict) else None
    return count(details, "reasoning_tokens") or count(usage, "reasoning_tokens") or 0


def count_shown(usage: object) -> int | None:
    """Return the generated tokens that are no thoughts, or None if they are not reported."""
    told, hidden = count(usage, "completion_tokens"), count_thoughts(usage)
    return told if told is None or hidden > told else told - hidden


def short(text: str, most: int = _SHOWN) -> str:
    """Return a text in one line of at most `most` characters, cut after a word if it has any."""
    line = " ".join(text.split())
    if len(line) <= most:
        return line
    kept = line[: most - 3]
    return f"{kept[: kept.rfind(' ', most // 2)] if ' ' in kept[most // 2 :] else kept}..."


def _as_list(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def _choice(raw: Mapping[str, Any]) -> AnswerChoice:
    message = raw.get("message", raw.get("delta"))
    said = message if isinstance(message, dict) else {"content": raw.get("text")}
    thoughts = said.get("reasoning_content") or said.get("reasoning")
    finish, index = raw.get("finish_reason"), raw.get("index")
    return AnswerChoice(
        number=index if isinstance(index, int) else 0,
        text=_text(said.get("content")),
        thoughts=_text(thoughts),
        finish=_ending(finish) if isinstance(finish, str) else None,
        raw=raw,
    )


def _ending(reason: str) -> str | None:
    """Return what a finish_reason means, or the reason itself of an answer that broke off."""
    meant = meaning(reason)
    return None if meant == PENDING else reason if meant == BREAK else meant


def _text(content: object) -> str:
    """Return a content that is a text, or a list of parts, as text."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in _as_list(content) if isinstance(part.get("text"), str))


OFF: Mapping[str, Any] = {"chat_template_kwargs": {"enable_thinking": False}}
"""The switch that the templates of most hybrid models have. Others ignore it."""
ROOM, MOST_ROOM = 512, 4096
"""Fewest and most tokens that an answer is given for its thoughts."""
ROOM_FACTOR = 4
"""Room for thoughts, in multiples of those about an easy sum."""


class Thinking(NamedTuple):
    """The thoughts of a model in chats, as far as a smoke test found out.

    `opened`: the chat template opens them, so that an answer shows only their end. `off` are the
    fields that switch them off; empty if nothing does. `room` is the number of tokens that an
    answer needs for them. `endless`: they did not end in the most room that was tried.
    """

    thinks: bool = False
    opened: bool = False
    off: Mapping[str, Any] = {}
    room: int = 0
    endless: bool = False

    def read(self, choice: AnswerChoice) -> str | None:
        """Return the answer without its thoughts; None if it was cut before it began."""
        opened = self.opened and not self.off
        rest, _ = split_thinking(choice.text, opened=opened)
        return None if not rest.strip() and choice.finish == "length" else rest

    def read_said(self, choice: AnswerChoice) -> str:
        """Return all that a choice says, or its answer alone if the model thinks."""
        return (self.read(choice) or "") if self.thinks else choice.said


NO_THOUGHTS = Thinking()
LOOP_CHARS, LOOP_TIMES = 1000, 8
"""Characters and repetitions at the end of thoughts that are a loop. A line of dashes is none."""


def find_loop(text: str) -> str:
    """Return the piece that a text repeats to its end, empty if it repeats none."""
    end = text.rstrip()
    for period in range(1, len(end) // LOOP_TIMES + 1):
        times = max(LOOP_TIMES, -(-LOOP_CHARS // period))
        if times * period > len(end) or end[-1 - period] != end[-1]:
            continue
        if end.endswith(end[-period:] * times):
            return _begin_at_sentence(end[-period:])
    return ""


def _begin_at_sentence(piece: str) -> str:
    """Return a repeated piece from the beginning of a sentence on, if it has one."""
    ended = max(piece.find(mark) for mark in (". ", "? ", "! ", "\n"))
    return (piece[ended + 1 :] + piece[: ended + 1]) if ended >= 0 else piece


def shows_thoughts(answer: Answer) -> bool:
    """Return True if an answer shows thoughts, or its server counts some that it hides."""
    first = answer.first
    tagged = OPEN in first.text or CLOSE in first.text
    return bool(first.thoughts.strip()) or tagged or count_thoughts(answer.parsed.get("usage")) > 0


def opens_thoughts(choice: AnswerChoice) -> bool:
    """Return True if the text closes thoughts that it did not open."""
    before, closed, _ = choice.text.partition(CLOSE)
    return bool(closed) and OPEN not in before


def room_for(tokens: int | None) -> int:
    """Return the room for thoughts, from the tokens of an answer to an easy sum."""
    return ROOM if tokens is None else min(MOST_ROOM, max(ROOM, ROOM_FACTOR * tokens))
