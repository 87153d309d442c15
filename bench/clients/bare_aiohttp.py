"""aiohttp alone: as an experienced user writes it, and as its documentation shows it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import aiohttp
import msgspec
from workload import fields, is_answer_to, is_stream_to


class _Choice(msgspec.Struct):
    text: str


class _Answer(msgspec.Struct):
    choices: list[_Choice]


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(_Answer).decode


def _session() -> aiohttp.ClientSession:
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=120)
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout)


@asynccontextmanager
async def opened(
    base_url: str, concurrency: int, stream: bool
) -> AsyncIterator[Callable[[int], Awaitable[bool]]]:
    """Open a session that handles bytes and typed JSON, and splits streams into lines by hand."""
    url, headers = f"{base_url}/completions", {"Content-Type": "application/json"}
    async with _session() as session:

        async def ask(i: int) -> bool:
            async with session.post(url, data=_encode(fields(i)), headers=headers) as reply:
                return is_answer_to(i, _decode(await reply.read()).choices[0].text)

        async def ask_stream(i: int) -> bool:
            pieces, rest = [], b""
            body = _encode({**fields(i), "stream": True})
            async with session.post(url, data=body, headers=headers) as reply:
                async for data in reply.content.iter_any():
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        if line.startswith(b"data: {"):
                            pieces += [choice.text for choice in _decode(line[6:]).choices]
            return is_stream_to(i, "".join(pieces))

        yield ask_stream if stream else ask


@asynccontextmanager
async def opened_idiomatic(
    base_url: str, concurrency: int, stream: bool
) -> AsyncIterator[Callable[[int], Awaitable[bool]]]:
    """Open a session that uses `json=` and `await reply.json()`."""
    assert not stream
    async with _session() as session:

        async def ask(i: int) -> bool:
            async with session.post(f"{base_url}/completions", json=fields(i)) as reply:
                return is_answer_to(i, (await reply.json())["choices"][0]["text"])

        yield ask
