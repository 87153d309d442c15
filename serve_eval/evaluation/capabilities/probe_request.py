"""Send probe requests, such as those that find the context length of an endpoint."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from typing import Any

from serve_eval.client.client import Client
from serve_eval.client.preflight import PING
from serve_eval.client.wire_format.refusal import shorten
from serve_eval.errors import EndpointError
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.schema import (
    Ability,
    Failure,
    FailureKind,
    Message,
    Need,
    Prompt,
    Request,
    Response,
    SamplingParams,
)

WORD = "violet"
"""Word that guided decoding must force into an unrelated answer, and argument for the tool call."""
MOST_ROOM = 4096
"""Most tokens of a probe whose answer ended within its thoughts."""
HELP: Mapping[Need, str] = {
    Need.COMPLETIONS: "Use chat (apply_chat_template: true), or serve /v1/completions.",
    Need.CHAT: (
        "Serve the model with its chat template, or use apply_chat_template: false if the task"
        " allows it."
    ),
    Need.PROMPT_LOGPROBS: (
        "Use a server that has echo with logprobs, or prompt_logprobs, such as vLLM: "
        "trtllm-serve has neither over HTTP."
    ),
    Need.CONTINUATION_LOGPROBS: (
        "Use a server that reports the tokens or the text_offset of a prompt."
    ),
    Need.FIRST_TOKEN: (
        "Name the token that begins a text, --set TASK.prefix='<s>', or the folder of the model's"
        " tokenizer: --set TASK.tokenizer=DIR."
    ),
    Need.LIKELIEST_TOKENS: (
        "Use a server that reports top_logprobs of a prompt, or the rank of its tokens."
    ),
    Need.IMAGES: "Serve a model that takes images.",
    Need.AUDIO: "Serve a model that takes sounds, with its audio packages (vLLM: vllm[audio]).",
    Need.VIDEO: "Serve a model that takes videos.",
    Need.GUIDED_DECODING: (
        "Start the server with a guided decoding backend (trtllm-serve: guided_decoding_backend)."
    ),
    Need.TOOLS: (
        "Start the server with a tool parser that fits the model (trtllm-serve: --tool_parser;"
        " vLLM: --enable-auto-tool-choice --tool-call-parser)."
    ),
    Need.TOKENS_PER_STEP: (
        "Use a server that reports avg_decoded_tokens_per_iter, as trtllm-serve does. The counters"
        " of vLLM are those of all requests to it: the report shows them, and judges none."
    ),
}


async def send_probe(client: Client, prompt: Prompt, **more: Any) -> Response | Failure:
    """Send one request that is not a sample.

    A temporary failure is retried; a response without an answer is not. Raises EndpointError if
    nothing answers any more.
    """
    max_tokens, extra = more.pop("max_tokens", 2), more.pop("extra", {})
    sampling = SamplingParams(max_tokens=max_tokens, stop=more.pop("stop", ()))
    request = Request(sample_id="probe", prompt=prompt, sampling=sampling, extra=extra, **more)
    result = await client.send(request, once=True)
    if (
        isinstance(result, Failure)
        and result.retryable
        and result.kind is not FailureKind.INVALID_RESPONSE
    ):
        result = await client.send(request)
    if isinstance(result, Failure) and result.kind in (
        FailureKind.TIMEOUT,
        FailureKind.DISCONNECTED,
    ):
        raise EndpointError(f"the endpoint stopped answering while it was probed: {result.message}")
    return result


async def send_with_room(
    client: Client, prompt: Prompt, *, max_tokens: int, extra: Mapping[str, object]
) -> Response | Failure:
    """Send a probe, and once more with room for thoughts if they left none for an answer.

    An answer that was cut shows no ability and no lack of one. A server that refuses the larger
    limit, since its context is short, keeps its first answer.
    """
    first = await send_probe(client, prompt, max_tokens=max_tokens, extra=extra)
    if isinstance(first, Failure) or not first.truncated or first.tool_calls:
        return first
    if isinstance(prompt, str) or first.text.lstrip()[:1] in ("{", "["):
        return first
    longer = await send_probe(client, prompt, max_tokens=MOST_ROOM, extra=extra)
    return first if isinstance(longer, Failure) else longer


def describe_cut(result: Response) -> str:
    """Return why an answer that was cut off shows nothing."""
    if result.reasoning and not result.text.strip():
        return "not judged: the answer ended within the model's thoughts"
    return "the answer was cut off too early to tell"


def ping(chat: bool) -> Prompt:
    """Return a short question."""
    return (Message(role="user", content=PING),) if chat else PING


CONTEXT = "context length"
"""The need that is a number of tokens."""
LONGER = "Serve the model with a longer context, or request shorter answers (max_tokens)."
SMALLEST = 512
"""Tokens that fit every context, so that most tasks are not probed."""
CHARS_PER_TOKEN = 2
"""Texts of tasks have more: a sample that fits by this number is not doubted."""
SOON = (" ", "\n", "2", ".")
"""Stop strings that end an answer immediately."""
CONTEXT_S = 60.0
"""Maximum seconds for the probe: a server that accepts the request could keep generating."""
_CONTEXT = re.compile(
    r"(?:maximum context length|max_model_len|max_seq_len|context"
    r" (?:length|window|size))\D{0,40}?(\d{2,})",
    re.IGNORECASE,
)


async def context_length(client: Client, wanted: int, *, chat: bool) -> int | None:
    """Return the context length in tokens, from /v1/models or from a refused request.

    That request asks for an answer of `wanted` tokens. If it is not refused, a stop string ends the
    answer immediately.
    """
    if (told := await client.context_tokens()) is not None:
        return told
    try:
        async with asyncio.timeout(CONTEXT_S):
            result = await send_probe(client, ping(chat), max_tokens=wanted, stop=SOON)
    except TimeoutError:
        return None
    if isinstance(result, Failure) and result.status in (400, 413, 422, 500):
        return read_context(result.message)
    return None


def read_context(message: str) -> int | None:
    """Return the context length that a refusal names, in tokens, or None."""
    numbers = [int(number) for number in _CONTEXT.findall(message)]
    return min(numbers) if numbers else None


async def refuses_shortest(client: Client, prepared: PreparedTask) -> Ability | None:
    """Return the lack of context for a task of which not even the shortest sample fits, or None.

    Only a server that reports its context length is asked, and only if the length of the text
    leaves room for doubt: then the sample is sent once, with stop strings that end the answer soon.
    """
    shortest = min(prepared.dataset.samples, key=lambda sample: _length(sample.prompt))
    asked = request_of(prepared.task, shortest)
    answer = 1 if asked.prompt_logprobs else asked.sampling.max_tokens
    most = _length(asked.prompt) // CHARS_PER_TOKEN + answer
    if most <= SMALLEST or (limit := await client.context_tokens()) is None or most <= limit:
        return None
    try:
        async with asyncio.timeout(CONTEXT_S):
            result = await send_probe(
                client,
                asked.prompt,
                max_tokens=asked.sampling.max_tokens,
                stop=SOON,
                extra=asked.extra,
                prompt_logprobs=asked.prompt_logprobs,
            )
    except TimeoutError:
        return None
    if not isinstance(result, Failure) or read_context(result.message) is None:
        return None
    seen = (
        f"the endpoint takes {limit} tokens, and not even the shortest prompt of the task fits:"
        f" {shorten(result.message)}"
    )
    return Ability(need=CONTEXT, works=False, seen=seen, help=LONGER)


def _length(prompt: Prompt) -> int:
    """Return the characters of a prompt."""
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(str(turn.content)) for turn in prompt)
