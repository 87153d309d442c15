"""serve-eval's own client, alone: no task, no journal, no scoring."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from workload import EXTRA, MAX_TOKENS, MODEL, STOP, is_answer_to, is_stream_to, prompt

from serve_eval.client.client import Client
from serve_eval.schema import Endpoint, Limits, Request, Response, SamplingParams


@asynccontextmanager
async def opened(base_url: str, concurrency: int, stream: bool) -> AsyncIterator[Callable[[int], Awaitable[bool]]]:
    """A Client with the limits of a run."""
    sampling = SamplingParams(max_tokens=MAX_TOKENS, stop=STOP)
    limits = Limits(concurrency=concurrency, **({"stream": True} if stream else {}))
    is_right = is_stream_to if stream else is_answer_to
    async with Client(Endpoint(base_url=base_url, model=MODEL), limits) as client, client.keeping(_Unheard()):

        async def ask(i: int) -> bool:
            request = Request(sample_id=str(i), prompt=prompt(i), sampling=sampling, extra=EXTRA)
            result = await client.send(request)
            return isinstance(result, Response) and is_right(i, result.text)

        yield ask


class _Unheard:
    """Takes no answer back: the server is known to answer once."""

    def proven(self, connection: int, turns: int) -> None:
        pass

    def out_of_step(self, connection: int, why: str) -> None:
        raise AssertionError(why)
