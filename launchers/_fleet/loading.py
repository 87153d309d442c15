"""Recognise a server that listens while it loads its model.

Servers of trtllm-serve do so since 2026, and say so in a header.
"""

from __future__ import annotations

from typing import Protocol

STATE_HEADER, STARTING = "x-trtllm-server-state", "starting"


class _Headers(Protocol):
    def get(self, name: str, default: str, /) -> str: ...


class _Reply(Protocol):
    @property
    def status_code(self) -> int: ...

    @property
    def headers(self) -> _Headers: ...


def says_so(reply: _Reply) -> bool:
    """Return True if the response comes from a server that still loads its model.

    Nothing has failed then.
    """
    return (
        reply.status_code == 503 and reply.headers.get(STATE_HEADER, "").strip().lower() == STARTING
    )
