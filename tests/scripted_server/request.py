"""A request as seen by a script of the test server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from aiohttp import web


@dataclass(frozen=True, kw_only=True)
class HttpRequest:
    """A request that has arrived whole.

    `number` counts from 1 the requests that the script answers, and `in_flight` those that it is
    answering now, including this one; both are 0 for a request to a fixed route. `http` is
    aiohttp's request.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    raw: bytes
    number: int = 0
    in_flight: int = 0
    http: web.Request = field(repr=False)

    @cached_property
    def body(self) -> dict[str, Any]:
        """Decode the JSON body; an empty one is {}."""
        decoded: dict[str, Any] = json.loads(self.raw or b"{}")
        return decoded

    @property
    def chat(self) -> bool:
        """Return True for a chat request, False for a text completion."""
        return self.path.endswith("/chat/completions")

    @property
    def prompt(self) -> str:
        """Return the text of the prompt, or of the last message of a chat."""
        asked: str = (
            self.body["prompt"] if "prompt" in self.body else self.body["messages"][-1]["content"]
        )
        return asked

    @property
    def max_tokens(self) -> int:
        """Return the limit of the answer's length, under either name, or 16 without one."""
        return int(self.body.get("max_completion_tokens", self.body.get("max_tokens", 16)))

    def reset(self) -> None:
        """Break the connection now, without the rest of the answer."""
        if self.http.transport is not None:
            self.http.transport.abort()
