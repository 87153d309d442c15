"""Find out if a server speaks TLS or plain HTTP, to suggest the right URL."""

from __future__ import annotations

import asyncio
import ssl
from urllib.parse import urlsplit

PROBE_S = 5.0
"""Seconds that each of the two probes may take."""


async def other_scheme(base_url: str) -> str:
    """Return advice if the server speaks the other of http and https, else an empty text.

    The text is also empty if the server cannot be reached. Checks no certificate and sends no
    secret.
    """
    parts = urlsplit(base_url)
    tls, host = parts.scheme == "https", parts.hostname or ""
    port = parts.port or (443 if tls else 80)
    if await _speaks_tls(host, port) is tls or (tls and not await _speaks_plainly(host, port)):
        return ""
    right, says = ("http", "plain HTTP, not TLS") if tls else ("https", "TLS, not plain HTTP")
    return f"The server speaks {says}: use {right}://{base_url.partition('://')[2]}"


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await _read_first_bytes(host, port, context) is not None


async def _speaks_plainly(host: str, port: int) -> bool:
    return (await _read_first_bytes(host, port, None) or b"").startswith(b"HTTP/")


async def _read_first_bytes(host: str, port: int, context: ssl.SSLContext | None) -> bytes | None:
    """Return the first bytes of the answer to a bare request; with TLS, b"" after the handshake.

    Returns None without a connection or without data.
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
