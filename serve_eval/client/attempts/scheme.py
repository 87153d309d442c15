"""Find out whether a server speaks TLS or plain HTTP, where its reply is neither, to name the right
address.
"""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

PROBE_S = 5.0
"""Seconds that each of the two questions may take."""


async def other_scheme(base_url: str) -> str:
    """What to do where the server speaks the other one of http and https; nothing where it does
    not, or cannot be reached. No certificate is checked and nothing secret is sent.
    """
    parts = urlsplit(base_url)
    tls, host = parts.scheme == "https", parts.hostname or ""
    port = parts.port or (443 if tls else 80)
    if await _speaks_tls(host, port) is tls or (tls and not await _speaks_plainly(host, port)):
        return ""
    right, says = ("http", "plain HTTP, no TLS") if tls else ("https", "TLS, no plain HTTP")
    return f"The server speaks {says}: write {right}://{base_url.partition('://')[2]}"


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await _read_first_bytes(host, port, context) is not None


async def _speaks_plainly(host: str, port: int) -> bool:
    return (await _read_first_bytes(host, port, None) or b"").startswith(b"HTTP/")


async def _read_first_bytes(host: str, port: int, context: ssl.SSLContext | None) -> bytes | None:
    """The first bytes of the answer to a request without a path of ours; without any where TLS is
    all that is asked for. None: no connection, or nothing came.
    """
    writer = None
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            if context is not None:
                return b""
            writer.write(
                b"GET / HTTP/1.1\r\nHost: " + host.encode("idna") + b"\r\nConnection: close\r\n\r\n"
            )
            return await reader.read(5)
    except (OSError, EOFError, TimeoutError, UnicodeError):  # ssl.SSLError is an OSError
        return None
    finally:
        if writer is not None:
            writer.transport.abort()
