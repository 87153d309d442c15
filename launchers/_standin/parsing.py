"""From a body to a request, or to the error text of the real server."""

from __future__ import annotations

import json
from typing import Any

from aiohttp import web
from pydantic import BaseModel, TypeAdapter, ValidationError

from serve_eval.launchers._http.errors import RefusedRequest
from serve_eval.launchers._standin.fields import (
    ChatCompletionRequest,
    CompletionRequest,
    Request,
)
from serve_eval.launchers._standin.main_fields import main_models
from serve_eval.launchers._standin.options import Flavour


class Invalid(Exception):
    """A body that no model accepts. The text is what follows `error` in the answer."""


_Models = tuple[type[CompletionRequest], type[ChatCompletionRequest]]
_MODELS: dict[str, _Models] = {
    "v12": (CompletionRequest, ChatCompletionRequest),
    "main": main_models(),
}
_EITHER: TypeAdapter[Request] = TypeAdapter(Request)


def parse(
    raw: bytes | dict[str, Any], *, chat: bool, flavour: Flavour, path: str, either: bool = False
) -> Request:
    """Return the request in a body.

    With `either`, both kinds are tried, as the 1.2 orchestrator does on both its routes. Raises
    Invalid.
    """
    if isinstance(raw, bytes):
        if flavour == "main" and not raw:
            problem: dict[str, Any] = {
                "type": "missing",
                "loc": ("body",),
                "msg": "Field required",
                "input": None,
            }
            raise Invalid(_text([problem], path))
        try:
            body = json.loads(raw)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            if flavour == "main" and isinstance(error, UnicodeDecodeError):
                raise RefusedRequest(
                    400, {"detail": "There was an error parsing the body"}
                ) from error
            at, said = (
                (error.pos, error.msg)
                if isinstance(error, json.JSONDecodeError)
                else (0, str(error))
            )
            problem = {
                "type": "json_invalid",
                "loc": ("body", at),
                "msg": "JSON decode error",
                "input": {},
            }
            raise Invalid(_text([{**problem, "ctx": {"error": said}}], path)) from error
    else:
        body = raw
    try:
        if either:
            return _EITHER.validate_python(body)
        return _MODELS["main" if flavour == "main" else "v12"][chat].model_validate(body)
    except ValidationError as error:
        problems = error.errors(include_url=False)
        raise Invalid(_text([{**p, "loc": ("body", *p["loc"])} for p in problems], path)) from error


def _text(problems: list[dict[str, Any]], path: str) -> str:
    count = f"{len(problems)} validation error{'s' if len(problems) > 1 else ''}:\n"
    lines = "".join(f"  {problem}\n" for problem in problems)
    return f'{count}{lines}\n  File "trtllm-serve", line 1, in wrapper\n    POST {path}'


def set_fields(request: BaseModel) -> dict[str, Any]:
    """Return the fields that the sender set, by their own names: those that are forwarded."""
    return request.model_dump(exclude_unset=True, by_alias=True)


def is_object(http: web.Request, raw: bytes) -> bool:
    """Return False for bodies over which FastAPI's own handler of errors fails."""
    typed = http.content_type in ("application/json", "application/octet-stream")
    return typed and not raw.lstrip().startswith(b"[")
