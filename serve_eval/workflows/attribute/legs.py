"""Ask a pair of servers as an orchestrator does: the context leg, then the generation leg."""

from __future__ import annotations

import secrets
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.wire_format import wire
from serve_eval.schema import Failure, FailureKind, Request, Response

GOES_ON = ("length", "not_finished")
"""Finish reasons of a context server whose answer a generation server has to continue."""


async def ask_pair(
    context: Client, generation: Client, request: Request
) -> Response | Failure | None:
    """Ask a pair as an orchestrator does.

    The latency covers both legs. Returns None if the context server finished the answer.
    """
    # Above 2 ** 40, like the ids of an orchestrator.
    number = (1 << 61) + secrets.randbits(60)
    first = {"disaggregated_params": {"request_type": "context_only", "disagg_request_id": number}}
    began = time.monotonic()
    handed_over = await _context_leg(context, _with(request, first))
    first_s = time.monotonic() - began
    if handed_over is None or isinstance(handed_over, Failure):
        return handed_over
    params, ids = handed_over
    prompt = "prompt" if isinstance(request.prompt, str) else "prompt_token_ids"
    handed = {prompt: ids, "disaggregated_params": {**params, "request_type": "generation_only"}}
    answer = await generation.send(_with(request, handed), once=True)
    if isinstance(answer, Failure):
        return answer
    return msgspec.structs.replace(answer, latency_s=first_s + answer.latency_s)


def _with(request: Request, more: Mapping[str, object]) -> Request:
    return msgspec.structs.replace(request, extra={**request.extra, **more})


async def _context_leg(
    client: Client, request: Request
) -> tuple[dict[str, Any], list[int]] | Failure | None:
    """Return the parameters for the generation server, and the token ids of the prompt."""
    body = wire.encode(
        request, client.endpoint.model or "", max_tokens_field=client.max_tokens_field
    )
    path = urlsplit(client.endpoint.base_url).path + wire.route(request.prompt)
    reply = await client.exchange("POST", path, body, timeout_s=client.limits.stall_timeout_s)
    if isinstance(reply, Failure):
        return reply
    if reply.error is not None or reply.status != 200:
        why = (
            str(reply.error)
            if reply.error is not None
            else wire.describe(reply.content, client.masking.message)
        )
        message = f"context server: HTTP {reply.status}: {why}"
        return Failure(kind=FailureKind.HTTP_ERROR, message=message, status=reply.status)
    try:
        answer = msgspec.json.decode(reply.content)
        choice = answer["choices"][0]
        if choice["finish_reason"] not in GOES_ON:
            return None
        return dict(choice["disaggregated_params"]), list(answer["prompt_token_ids"])
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
    ):
        message = (
            f"context server: no handover: {wire.describe(reply.content, client.masking.message)}"
        )
        return Failure(kind=FailureKind.INVALID_RESPONSE, message=message, status=reply.status)
