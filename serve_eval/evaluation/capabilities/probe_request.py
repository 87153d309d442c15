"""Send probe requests, and hold the hints for what an endpoint lacks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_eval.client.client import Client
from serve_eval.client.preflight import PING
from serve_eval.errors import EndpointError
from serve_eval.schema import (
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
