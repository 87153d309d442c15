"""The fields of answers that are read, as structures that decode quickly. Pure."""

from __future__ import annotations

from typing import Any

import msgspec

from serve_eval.schema import PromptLogprobs, ToolCall, Usage

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
