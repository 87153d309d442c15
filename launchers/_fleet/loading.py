"""A server that listens while it loads its model, as those of trtllm-serve do since 2026, and says
so in a header.
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
    """Return whether an answer is that of a server that still loads its model. Nothing has failed
    then.
    """
    return (
        reply.status_code == 503 and reply.headers.get(STATE_HEADER, "").strip().lower() == STARTING
    )
