"""Decode the needed fields of an answer, and build the Response that is scored."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import UNSET

from serve_eval.schema import Attempt, PromptLogprobs, Request, Response, ToolCall, Usage

BOM = b"\xef\xbb\xbf"
"""Some servers put this before their JSON."""
USUAL_OBJECTS = frozenset({None, "chat.completion", "chat.completion.chunk", "text_completion"})


class Said(msgspec.Struct):
    """An answer as the server gave it.

    `id` is its own id, and `fingerprint` its system_fingerprint (None: the server gives none).
    `finish_reason` is what the server's own word means, which is in `server_finish` if it differs.
    """

    id: str | None = None
    text: str = ""
    reasoning: str | None = None
    refusal: str | None = None
    finish_reason: str | None = None
    stop_reason: str | None = None
    usage: Usage = Usage()
    tokens_per_step: float | None = None
    prompt_logprobs: PromptLogprobs | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    call_faults: tuple[str, ...] = ()
    fingerprint: str | None = None
    server_finish: str | None = None


class WireDelta(msgspec.Struct):
    """The parts of a message, or of a piece of one."""

    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    refusal: str | None = None
    tool_calls: Any = None
    error: Any = None


class WireChoice(msgspec.Struct):
    """One answer, or a piece of it. Fields in the usual order decode quickest.

    `matched_stop` is SGLang's name for vLLM's `stop_reason`.
    """

    index: int | None = 0
    delta: WireDelta | None = None
    message: WireDelta | None = None
    text: str | None = None
    finish_reason: str | None = None
    stop_reason: Any = None
    matched_stop: Any = None
    avg_decoded_tokens_per_iter: Any = None
    error: Any = None


class WireUsage(msgspec.Struct):
    """Token counts. Each may be anything."""

    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: Any = None
    completion_tokens_details: Any = None
    reasoning_tokens: Any = None


class Body(msgspec.Struct):
    """The fields of a chunk of a stream that are read."""

    id: Any = None
    object: str | None = None
    choices: list[WireChoice] | None = None
    usage: WireUsage | None = None
    system_fingerprint: Any = None
    error: Any = None


class WholeBody(Body):
    """The fields of a complete answer that are read, with two that also say that it is none."""

    status: Any = None
    code: Any = None


class ErrorSigns(msgspec.Struct):
    """Fields by which servers say that something is no answer, although they have other uses."""

    errors: Any = None
    detail: Any = None
    type: Any = None
    status: Any = None
    code: Any = None
    error_code: Any = None
    error_msg: Any = None
    error_message: Any = None
    err: Any = None
    exception: Any = None


read_chunk = msgspec.json.Decoder(Body).decode
read_whole = msgspec.json.Decoder(WholeBody).decode
read_signs = msgspec.json.Decoder(ErrorSigns).decode


_NAMES = {
    "prompt_tokens": ("prompt_tokens", "input_tokens", "promptTokenCount"),
    "completion_tokens": ("completion_tokens", "output_tokens", "candidatesTokenCount"),
    "prompt_tokens_details": ("prompt_tokens_details", "input_tokens_details"),
    "completion_tokens_details": ("completion_tokens_details", "output_tokens_details"),
    "reasoning_tokens": ("reasoning_tokens", "thoughtsTokenCount"),
}
_USAGES = ("usage", "usageMetadata", "usage_metadata")
NO_USAGE = Usage()
MAX_FINGERPRINT = 100
"""Characters kept of a system_fingerprint."""


def answer_id(told: object) -> str | None:
    """Return the id of an answer or a chunk."""
    return told if isinstance(told, str) and told else None


def fingerprint(told: object) -> str | None:
    """Return the beginning of a system_fingerprint, or None if the server gives none."""
    return told[:MAX_FINGERPRINT] if isinstance(told, str) and told else None


def stop_string(reason: object) -> str | None:
    """Return the stop string that ended an answer. Token ids are ignored."""
    return reason if isinstance(reason, str) else None


def tokens_per_step(told: object) -> float | None:
    """Return the tokens per step of the engine, or None if the server does not report them."""
    if not told:  # nearly always; the types below take longer
        return None
    return float(told) if isinstance(told, int | float) and 0 < told < 2**53 else None


def usage(told: object) -> Usage:
    """Return the token counts. Missing or invalid ones are 0."""
    if type(told) is WireUsage:
        return _read_usage(told)
    return _read_usage(_name_counts(told)) if isinstance(told, dict) else NO_USAGE


def _read_usage(told: WireUsage) -> Usage:
    prompt, completion = told.prompt_tokens, told.completion_tokens
    if not (type(prompt) is int and type(completion) is int and prompt >= 0 and completion >= 0):
        prompt, completion = _count(prompt), _count(completion)
    details, thoughts = told.prompt_tokens_details, told.completion_tokens_details
    hidden, cached = told.reasoning_tokens, None
    if isinstance(details, dict):
        cached = details.get("cached_tokens")
        if type(cached) is not int or not 0 <= cached < 2**53:
            cached = None
    if isinstance(thoughts, dict):
        hidden = thoughts.get("reasoning_tokens") or hidden
    if hidden:
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            reasoning_tokens=_count(hidden),
        )
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def find_usage(told: object) -> WireUsage | None:
    """Return the token counts of a body, wherever servers put them, or None.

    Moonshot's are in the first choice, Groq's in `x_groq`; llama.cpp also counts in `timings`.
    """
    if not isinstance(told, dict):
        return None
    choices = told.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    inner = [first.get("message"), first.get("delta")] if isinstance(first, dict) else []
    for one in (told, first, told.get("x_groq"), *inner):
        if isinstance(one, dict):
            for name in _USAGES:
                if one.get(name) and isinstance(one[name], dict):
                    return _name_counts(one[name])
    return _read_timings(told.get("timings"))


def _read_timings(told: object) -> WireUsage | None:
    """Return the counts in llama.cpp's `timings`, whose `prompt_n` leaves out cached tokens."""
    if not isinstance(told, dict) or type(told.get("predicted_n")) is not int:
        return None
    return WireUsage(
        prompt_tokens=_count(told.get("prompt_n")) + _count(told.get("cache_n")),
        completion_tokens=told["predicted_n"],
    )


def _name_counts(told: dict[str, Any]) -> WireUsage:
    """Return counts by OpenAI's names, from those of Responses, Anthropic and Gemini too."""
    found = {
        name: next((told[one] for one in names if told.get(one) is not None), None)
        for name, names in _NAMES.items()
    }
    return WireUsage(**found)


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0


_encode = msgspec.json.Encoder().encode

NO_ID, REPEATED_ID, NO_NAME = "a call has no id", "two calls have one id", "a call has no name"
SHARED_INDEX = "pieces with one index have two ids"
BAD_INDEX = "the indexes of the pieces are not 0, 1, 2, ..."
"""Faults in the frame of the calls, by which clients join their pieces."""


class ToolCalls:
    """Assembles calls in the order of their first pieces.

    A piece belongs to the call of its `index`. Without an index, a piece with an `id` or a name
    begins a call, and any other continues the last one. Anything that is not a call is ignored.
    `streamed`: the pieces need an index.
    """

    def __init__(self, *, streamed: bool = False) -> None:
        self._streamed = streamed
        self._names: dict[object, str] = {}
        self._arguments: dict[object, list[str]] = {}
        self._ids: dict[object, str] = {}
        self._shared = False

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, told: object) -> None:
        """Take the `tool_calls` of a message or of a piece of one."""
        for place, one in enumerate(told if isinstance(told, list) else ()):
            function = one.get("function") if isinstance(one, dict) else None
            if not isinstance(function, dict):
                continue
            name, arguments = function.get("name"), function.get("arguments")
            index = one.get("index")
            if not isinstance(index, int):
                begins = bool(one.get("id") or name) or not self._names
                index = ("call", len(self._names), place) if begins else next(reversed(self._names))
            known = self._names.setdefault(index, "")
            if not known and isinstance(name, str):
                self._names[index] = name
            self._note_id(index, one.get("id"))
            if isinstance(arguments, str):
                self._arguments.setdefault(index, []).append(arguments)
            elif arguments is not None:
                self._arguments[index] = [_encode(arguments).decode()]

    def whole(self) -> tuple[ToolCall, ...]:
        """Return the calls that have a name."""
        return tuple(
            ToolCall(name, "".join(self._arguments.get(index, ())))
            for index, name in self._names.items()
            if name
        )

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong with the ids, the indexes and the names of the calls."""
        ids = [self._ids.get(index, "") for index in self._names]
        given = [one for one in ids if one]
        found = {
            NO_ID: len(given) < len(ids),
            REPEATED_ID: len(set(given)) < len(given),
            SHARED_INDEX: self._shared,
            NO_NAME: not all(self._names.values()),
            BAD_INDEX: self._streamed and [*self._names] != [*range(len(self._names))],
        }
        return tuple(fault for fault, is_there in found.items() if is_there)

    def _note_id(self, index: object, told: object) -> None:
        if isinstance(told, str) and told:
            self._shared |= self._ids.setdefault(index, told) != told


OPEN, CLOSE = "<think>", "</think>"


def split_thinking(text: str, *, opened: bool = False) -> tuple[str, str | None]:
    """Return (answer, thoughts). The thoughts are the text between <think> and </think>, or None.

    `opened`: the prompt ended in <think>. A </think> without a <think> closes the one that the chat
    template opened. Thoughts without an end leave no answer, because no text in them was meant as
    one.
    """
    opens, closes = text.find(OPEN), text.find(CLOSE)
    if opens < 0 and closes < 0 and not opened:
        return text, None
    thinking = opened or (closes >= 0 and (opens < 0 or closes < opens))
    answer: list[str] = []
    thoughts: list[str] = []
    rest, mark = text, CLOSE
    while mark:
        piece, mark, rest = rest.partition(CLOSE if thinking else OPEN)
        (thoughts if thinking else answer).append(piece)
        thinking = thinking != bool(mark)
    if thinking:
        return "", text
    return "".join(answer), "\n".join(thought for thought in thoughts if thought.strip()) or None


def leaves_thinking_open(prompt: str) -> bool:
    """Return True if a prompt ends with an open <think>, as some chat templates do."""
    last = prompt[-1:]
    return (last == ">" or last.isspace()) and prompt.rstrip().endswith(OPEN)


def microseconds(seconds: float) -> float:
    """Return seconds rounded to the microsecond; `round` takes ten times as long."""
    return int(seconds * 1e6 + 0.5) / 1e6


def response(
    request: Request,
    said: Said,
    *,
    start: float,
    end: float,
    first_at: float | None = None,
    last_at: float | None = None,
    attempts: tuple[Attempt, ...] = (),
) -> Response:
    """Return the response, without thoughts, its text cut at the first stop string.

    Some servers leave the stop string in. `start` and `end` are the times of the successful
    attempt, `first_at` and `last_at` those of a stream's first and last token, all in seconds of
    one clock.
    """
    text, prompt = said.text, request.prompt
    opened, thoughts = isinstance(prompt, str) and leaves_thinking_open(prompt), None
    if opened or "<" in text:  # no tag is in most texts
        text, thoughts = split_thinking(text, opened=opened)
    thoughts_ended = thoughts is not None and thoughts is not said.text
    for stop in request.sampling.stop:
        if stop in text:
            text = text[: text.index(stop)]
    reasoning = said.reasoning
    if thoughts:
        reasoning = f"{reasoning}\n{thoughts}" if reasoning else thoughts
    ttft_s = tpot_s = None
    if first_at is not None and last_at is not None:
        ttft_s = microseconds(first_at - start)
        usage = said.usage
        tokens = usage.completion_tokens if said.reasoning else usage.shown_tokens
        if tokens > 1:
            tpot_s = microseconds((last_at - first_at) / (tokens - 1))
    found = Response(
        text=text,
        finish_reason=said.finish_reason,
        reasoning=reasoning or None,
        stop_reason=said.stop_reason,
        thoughts_ended=thoughts_ended,
        usage=said.usage,
        latency_s=microseconds(end - start),
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        attempts=attempts,
        tokens_per_step=said.tokens_per_step,
        answer_id=said.id,
        system_fingerprint=said.fingerprint or UNSET,
        server_finish=said.server_finish or UNSET,
    )
    rare = said.tool_calls or said.call_faults or said.prompt_logprobs is not None
    return (
        msgspec.structs.replace(
            found,
            refusal=said.refusal,
            prompt_logprobs=said.prompt_logprobs,
            tool_calls=said.tool_calls,
            call_faults=said.call_faults or UNSET,
        )
        if rare or said.refusal is not None
        else found
    )
