"""Responses of the simulated endpoint to requests that fail on demand: one per `faults.Fault`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import assert_never

from aiohttp import web

from serve_eval.launchers._http.answers import Generated
from serve_eval.launchers._http.errors import encode, trtllm_error
from serve_eval.launchers._http.server import json_response, send_stream
from serve_eval.launchers._simulated.asked import Asked, events, whole
from serve_eval.launchers._simulated.faults import BadAnswer, Fault, Refusal


async def reply(
    kind: Fault, request: web.Request, asked: Asked, number: int, sound: Sequence[Generated]
) -> web.StreamResponse:
    """Fail in the given way. `sound` is the answer that the request would have got."""
    match kind:
        case "disconnect":
            if request.transport is not None:
                request.transport.abort()
            return web.Response()
        case "hang":
            await asyncio.Event().wait()
            return web.Response()
        case "stream_without_finish":
            return await send_stream(request, events(asked, number, sound, finish=False))
        case "empty_choices" | "null_content" | "bad_json":
            return json_response(200, bad_answer(kind, asked, number, sound))
        case "500" | "429" | "503" | "html" | "wrapped_400":
            return refusal(kind, request.path)
        case _:
            assert_never(kind)


def refusal(kind: Refusal, path: str) -> web.Response:
    """Refuse a request to `path` in the form of trtllm-serve, its orchestrator or a gateway."""
    match kind:
        case "500":
            return json_response(500, encode({"detail": "Internal server error simulated failure"}))
        case "429":
            body = trtllm_error("Simulated overload", "TooManyRequests", 429)
            return json_response(429, encode(body), {"Retry-After": "0"})
        case "503":
            text = "LLM is unavailable. Please check the server logs for more details."
            return web.Response(status=503, text=text)
        case "html":
            text = "<!DOCTYPE html><html><body><h1>Simulated gateway</h1></body></html>"
            return web.Response(text=text, content_type="text/html")
        case "wrapped_400":
            detail = (
                f"Internal server error 400, message='Bad Request', url='http://localhost:1{path}'"
            )
            return json_response(500, encode({"detail": detail}))
        case _:
            assert_never(kind)


def bad_answer(kind: BadAnswer, asked: Asked, number: int, sound: Sequence[Generated]) -> bytes:
    """Return a body that comes with status 200 and contains no text."""
    match kind:
        case "empty_choices":
            return whole(asked, number, [])
        case "null_content":
            return whole(asked, number, [Generated(None, None) for _ in sound])
        case "bad_json":
            body = whole(asked, number, sound)
            return body[: len(body) // 2]
        case _:
            assert_never(kind)
