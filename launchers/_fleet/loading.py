"""Ask a server in bounded memory, and recognise one that still loads its model.

Servers of trtllm-serve do so since 2026, and say so in a header.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    import httpx


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


MOST_BYTES = 1024 * 1024
"""Maximum size of a reply that is read: an answer to /health or of four tokens is far smaller."""


class BoundedReply(NamedTuple):
    """A status, the header fields, and the beginning of the body as text.

    `whole`: the body was neither cut nor compressed, although neither was asked for.
    """

    status_code: int
    headers: httpx.Headers
    text: str
    whole: bool

    def json(self) -> Any:
        """Return the body as JSON. Raises ValueError for one that is none, or that was cut."""
        if not self.whole:
            raise ValueError(f"a reply that is compressed or has more than {MOST_BYTES} bytes")
        return json.loads(self.text)


async def request(
    client: httpx.AsyncClient, method: str, url: str, *, body: object = None, timeout_s: float
) -> BoundedReply:
    """Send a request and return the reply. Raises what httpx does.

    A compressed body stays compressed, since a few bytes of it can fill the memory.
    """
    options: dict[str, Any] = {} if body is None else {"json": body}
    headers = {"Accept-Encoding": "identity"}
    async with client.stream(method, url, headers=headers, timeout=timeout_s, **options) as reply:
        packed = reply.headers.get("content-encoding", "identity").strip().lower() != "identity"
        held = bytearray()
        if not packed:
            async for piece in reply.aiter_raw():
                held += piece
                if len(held) > MOST_BYTES:
                    break
        whole = not packed and len(held) <= MOST_BYTES
        text = bytes(held[:MOST_BYTES]).decode(errors="replace")
        return BoundedReply(reply.status_code, reply.headers, text, whole)
