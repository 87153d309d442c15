"""Turn the fields of a reply into the response that is kept and scored.

A proxy that answers twice puts the second answer before the reply to the next request on that
connection. From then on every sample would be scored with another sample's answer. HTTP/1.1 does
not reveal it, but the ids of the answers do.
"""

from __future__ import annotations

import msgspec
from msgspec import UNSET

from serve_eval.client.transport import Channel
from serve_eval.client.wire_format.wire import Said
from serve_eval.schema import Attempt, Request, Response

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


class Echoes:
    """Detects repeated answers by their ids, unless the server gives every answer the same id."""

    def __init__(self) -> None:
        self._newest: tuple[str, Channel] | None = None
        self._ids_tell = True

    def is_echo(self, channel: Channel, said: Said) -> bool:
        """Return True if a connection repeated its last answer: same id, text and tool calls."""
        if said.id is None or not self._ids_tell:
            return False
        text = hash((said.text, said.tool_calls))
        if said.id == channel.last_id and text == channel.last_text:
            self._newest = said.id, channel
            return True
        elsewhere = (
            self._newest is not None
            and self._newest[0] == said.id
            and self._newest[1] is not channel
        )
        if elsewhere or said.id == channel.last_id:
            self._ids_tell = False
        self._newest, channel.last_id, channel.last_text = (said.id, channel), said.id, text
        return False
