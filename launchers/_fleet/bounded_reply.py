"""Read a reply of a server up to a bound, and never unpack it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import httpx

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
