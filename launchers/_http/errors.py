"""Refuse requests as OpenAI-compatible servers do.

Errors have the form of trtllm-serve, and that of OpenAI for an unknown model.
"""

from __future__ import annotations

import msgspec

encode = msgspec.json.Encoder().encode


class RefusedRequest(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, body: object) -> None:
        self.status, self.body = status, body


def trtllm_error(message: str, kind: str, status: int) -> dict[str, object]:
    return {"object": "error", "message": message, "type": kind, "param": None, "code": status}


def openai_error(message: str, code: str, param: str | None = None) -> dict[str, object]:
    return {
        "error": {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    }


def bad_request(message: str) -> RefusedRequest:
    return RefusedRequest(400, trtllm_error(message, "BadRequestError", 400))
