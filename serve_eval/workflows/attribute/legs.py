"""Ask a pair of servers as an orchestrator does: the context leg, then the generation leg.

Two engines hand over differently. trtllm-serve takes `disaggregated_params` and returns the token
ids of the prompt. vLLM takes `kv_transfer_params`, and its second request has the prompt itself.

Since August 2026, trtllm-serve takes data about another server's KV cache only from a client that
knows the key that the servers share. A generation server refuses a request without its signature.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from serve_eval.client.client import Client
from serve_eval.client.engine_metrics import VLLM_ROUTE
from serve_eval.client.wire_format import refusal, wire
from serve_eval.evaluation.engine.send import send_to_thinker
from serve_eval.launchers._trtllm import kv_transfer
from serve_eval.schema import Endpoint, Failure, FailureKind, Request, Response

GOES_ON = ("length", "not_finished")
"""Finish reasons of a context server whose answer a generation server has to continue."""
VLLM_FIRST = {"do_remote_decode": True, "do_remote_prefill": False}
"""Instructions to vLLM's prefill server about the KV cache of a prompt."""
_FINISHED = Failure(kind=FailureKind.INVALID_RESPONSE, message="the context server finished")


class Handover(StrEnum):
    """The way in which a context server hands a prompt over."""

    TRTLLM = "disaggregated_params"
    VLLM = "kv_transfer_params"


async def find_handover(
    context: Client, generation: Client, request: Request, key: str | None = None
) -> Handover | str:
    """Return the way in which a context server hands over, or why it does not.

    Sends a request for each way. A server that knows neither field answers both as usual. What it
    hands over is fetched by the generation server: otherwise it would keep the KV cache until it
    counts the request as expired, and a later command would take that for a fault.
    """
    seen: list[str] = []
    for way, params in ((Handover.TRTLLM, _trtllm_params()), (Handover.VLLM, VLLM_FIRST)):
        reply = await _first_leg(context, request, way, params)
        if isinstance(reply, Failure):
            seen.append(reply.message)
        elif (handed := _read_handover(reply, way)) is not None:
            if reply["choices"][0]["finish_reason"] in GOES_ON:
                await _second_leg(generation, request, way, handed, key)
            return way
        else:
            seen.append(f"no {way} in its answer")
    return "; ".join(dict.fromkeys(seen))


async def ask_pair(
    context: Client, generation: Client, request: Request, way: Handover, key: str | None = None
) -> Response | Failure | None:
    """Ask a pair as an orchestrator does, and read its thoughts as those of a single server.

    `key` signs the second request. The latency covers both legs. Returns None if the context server
    finished the answer.
    """

    async def send(asked: Request) -> Response | Failure:
        found = await _ask_both(context, generation, asked, way, key)
        return _FINISHED if found is None else found

    found = await send_to_thinker(generation, request, send=send)
    return None if found is _FINISHED else found


async def _ask_both(
    context: Client, generation: Client, request: Request, way: Handover, key: str | None
) -> Response | Failure | None:
    began = time.monotonic()
    first = await _first_leg(
        context, request, way, _trtllm_params() if way is Handover.TRTLLM else VLLM_FIRST
    )
    first_s = time.monotonic() - began
    if isinstance(first, Failure):
        return first
    if first["choices"][0]["finish_reason"] not in GOES_ON:
        return None
    handed = _read_handover(first, way)
    if handed is None:
        message = f"context server: no {way} in its answer"
        return Failure(kind=FailureKind.INVALID_RESPONSE, message=message, status=200)
    answer = await _second_leg(generation, request, way, handed, key)
    if isinstance(answer, Failure):
        return answer
    return msgspec.structs.replace(answer, latency_s=first_s + answer.latency_s)


async def _second_leg(
    generation: Client,
    request: Request,
    way: Handover,
    handed: Mapping[str, Any],
    key: str | None,
) -> Response | Failure:
    """Let a generation server answer from what a context server handed over."""
    if way is Handover.TRTLLM:
        prompt = "prompt" if isinstance(request.prompt, str) else "prompt_token_ids"
        more: dict[str, object] = {
            prompt: handed["prompt_token_ids"],
            way: {**handed["params"], "request_type": "generation_only"},
        }
    else:
        more = {way: handed["params"]}
    signature = sign(key, handed["params"]) if way is Handover.TRTLLM else {}
    return await generation.send(_with(request, more), once=True, headers=signature)


def _trtllm_params() -> dict[str, object]:
    # Above 2 ** 40, like the ids of an orchestrator.
    number = (1 << 61) + secrets.randbits(60)
    return {"request_type": "context_only", "disagg_request_id": number}


def _with(request: Request, more: Mapping[str, object]) -> Request:
    return msgspec.structs.replace(request, extra={**request.extra, **more})


async def _first_leg(
    client: Client, request: Request, way: Handover, params: Mapping[str, object]
) -> dict[str, Any] | Failure:
    """Return the whole answer of a context server."""
    asked = _with(request, {way: params})
    if way is Handover.VLLM:  # trtllm-serve stops after the first token by itself
        one = replace(request.sampling, max_tokens=1)
        asked = msgspec.structs.replace(asked, sampling=one)
    body = await client.encoder.encode(asked)
    path = urlsplit(client.endpoint.base_url).path + wire.route(request.prompt)
    reply = await client.exchange("POST", path, body, timeout_s=client.limits.stall_timeout_s)
    if isinstance(reply, Failure):
        return reply
    told = refusal.describe(reply.content, client.masking.message)
    if reply.error is not None or reply.status != 200:
        why = str(reply.error) if reply.error is not None else told
        message = f"context server: HTTP {reply.status}: {why}"
        return Failure(kind=FailureKind.HTTP_ERROR, message=message, status=reply.status)
    try:
        answer = msgspec.json.decode(reply.content)
        if isinstance(answer["choices"][0]["finish_reason"], str):
            return dict(answer)
    except (
        msgspec.DecodeError,
        UnicodeDecodeError,
        RecursionError,
        KeyError,
        IndexError,
        TypeError,
        ValueError,
    ):
        pass
    message = f"context server: no answer: {told}"
    return Failure(kind=FailureKind.INVALID_RESPONSE, message=message, status=reply.status)


def _read_handover(answer: Mapping[str, Any], way: Handover) -> dict[str, Any] | None:
    """Return what a context server hands over, or None if its answer has nothing of this way."""
    if way is Handover.VLLM:
        params = answer.get(way)
        return {"params": params} if isinstance(params, dict) and params else None
    params, ids = answer["choices"][0].get(way), answer.get("prompt_token_ids")
    if not isinstance(params, dict) or not isinstance(ids, list):
        return None
    return {"params": params, "prompt_token_ids": ids}


HEADER = "x-trtllm-disagg-auth"
STATE, ENDPOINT = "encoded_opaque_state", "ctx_info_endpoint"
"""The signed fields of `disaggregated_params`."""
REFUSED = "Invalid internal disaggregated request authentication"
"""Text of a server that got no signature, or a wrong one."""
ADVICE = (
    f"the servers share a key ({kv_transfer.NAME}), and its launch no longer has it or was not"
    " serve-eval's: keep servers up with --keep-servers, name the variable that has the key with"
    " --auth-key-env, or start them without one (launcher.auth_key: false)"
)


def find_key(endpoint: Endpoint, variable: str | None, environ: Mapping[str, str]) -> str | None:
    """Return the key of a variable, else that of the launch that still runs; None if unknown."""
    if variable is not None:
        return environ.get(variable) or None
    log_dir = endpoint.info.log_dir
    return kv_transfer.read_kept(Path(log_dir)) if log_dir else None


def sign(key: str | None, params: Mapping[str, object]) -> dict[str, str]:
    """Return the header that a generation server needs for these `disaggregated_params`.

    Empty without a key, and if no field has to be signed. The signature is HMAC-SHA256 over the
    sorted, compact JSON of both fields; of several addresses of the context server, the first
    counts (tensorrt_llm/serve/disagg_auth.py).
    """
    state, address = params.get(STATE), params.get(ENDPOINT)
    if key is None or (state is None and address is None):
        return {}
    if isinstance(address, list):
        address = address[0] if address else None
    signed = json.dumps({STATE: state, ENDPOINT: address}, sort_keys=True, separators=(",", ":"))
    digest = hmac.new(key.encode(), signed.encode(), hashlib.sha256).hexdigest()
    return {HEADER: f"sha256={digest}"}


KvCounts = dict[str, int | None]
"""Tokens by the URL of a server; None if it does not count them."""


async def count_moved(client: Client) -> int | None:
    """Return the prompt tokens that came to a vLLM from another server.

    None if the server does not count them.
    """
    reading = await client.read_engine(VLLM_ROUTE)
    return None if reading is None else reading.counts.moved_tokens
