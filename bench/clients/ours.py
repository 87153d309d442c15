"""serve-eval's client alone: no task, no journal, no scoring."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from workload import EXTRA, MAX_TOKENS, MODEL, STOP, is_answer_to, is_stream_to, prompt

from serve_eval.client.client import Client
from serve_eval.schema import Endpoint, Limits, Request, Response, SamplingParams


class Asker:
    """Sends request `i` and returns whether the whole and right answer came.

    It records the times to the first token.
    """

    def __init__(self, client: Client, stream: bool) -> None:
        self._client, self._is_right = client, is_stream_to if stream else is_answer_to
        self._sampling = SamplingParams(max_tokens=MAX_TOKENS, stop=STOP)
        self.first_token_s: list[float] = []

    async def __call__(self, i: int) -> bool:
        request = Request(sample_id=str(i), prompt=prompt(i), sampling=self._sampling, extra=EXTRA)
        result = await self._client.send(request)
        if not isinstance(result, Response):
            return False
        if result.ttft_s is not None:
            self.first_token_s.append(result.ttft_s)
        return self._is_right(i, result.text)


@asynccontextmanager
async def opened(base_url: str, concurrency: int, stream: bool) -> AsyncIterator[Asker]:
    """Open a Client with the limits of a run."""
    limits = Limits(concurrency=concurrency, **({"stream": True} if stream else {}))
    endpoint = Endpoint(base_url=base_url, model=MODEL)
    async with (
        Client(endpoint, limits) as client,
        client.keep_connections(_Unheard()),
    ):
        yield Asker(client, stream)


class _Unheard:
    """Ignores reports about connections: this server never answers twice."""

    def proven(self, connection: int, turns: int) -> None:
        pass

    def out_of_step(self, connection: int, why: str) -> None:
        raise AssertionError(why)

    def lose_answers(self, connection: int, why: str, *, silent: bool) -> None:
        pass

    def trust_answers(self, connection: int, turns: int) -> None:
        pass
