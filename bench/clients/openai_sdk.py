"""OpenAI's SDK, with raised limits on connections and without its silent retries."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2
import openai
from workload import EXTRA, MAX_TOKENS, MODEL, STOP, is_answer_to, is_stream_to, prompt


def _settings(base_url: str) -> dict[str, Any]:
    return {"base_url": base_url, "api_key": "none", "max_retries": 0}


def _room(concurrency: int) -> dict[str, Any]:
    """Return limits as numbers: the transport over aiohttp takes None for 100."""
    connections = concurrency + 100
    return {
        "limits": httpx2.Limits(max_connections=connections, max_keepalive_connections=connections),
        "timeout": httpx2.Timeout(600, connect=120),
    }


def _arguments(i: int) -> dict[str, Any]:
    sampling = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "top_p": 1.0, "stop": list(STOP)}
    return {"model": MODEL, "prompt": prompt(i), "extra_body": EXTRA, **sampling}


@asynccontextmanager
async def _opened(
    transport: type[Any], base_url: str, concurrency: int, stream: bool
) -> AsyncIterator[Callable[[int], Awaitable[bool]]]:
    async with openai.AsyncOpenAI(
        http_client=transport(**_room(concurrency)), **_settings(base_url)
    ) as client:

        async def ask(i: int) -> bool:
            answer = await client.completions.create(**_arguments(i))
            return is_answer_to(i, answer.choices[0].text)

        async def ask_stream(i: int) -> bool:
            events = await client.completions.create(**_arguments(i), stream=True)
            pieces = [choice.text async for event in events for choice in event.choices]
            return is_stream_to(i, "".join(pieces))

        yield ask_stream if stream else ask


def opened(base_url: str, concurrency: int, stream: bool) -> Any:
    """Open AsyncOpenAI with its default transport."""
    return _opened(openai.DefaultAsyncHttpxClient, base_url, concurrency, stream)


def opened_aiohttp(base_url: str, concurrency: int, stream: bool) -> Any:
    """Open AsyncOpenAI over aiohttp."""
    return _opened(openai.DefaultAioHttpClient, base_url, concurrency, stream)


@contextmanager
def opened_sync(base_url: str, concurrency: int, stream: bool) -> Iterator[Callable[[int], bool]]:
    """Open OpenAI for threads."""
    assert not stream
    with openai.OpenAI(
        http_client=openai.DefaultHttpxClient(**_room(concurrency)), **_settings(base_url)
    ) as client:

        def ask(i: int) -> bool:
            answer = client.completions.create(**_arguments(i))
            return is_answer_to(i, answer.choices[0].text)

        yield ask
