"""A client that keeps its connections, as in a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serve_eval.client.client import Client


class Heard:
    """Listener for the reports of a client about its connections."""

    def __init__(self) -> None:
        self.in_step: dict[int, int] = {}
        self.out: dict[int, str] = {}
        self.ended: dict[int, bool] = {}
        self.stand: dict[int, int] = {}

    def proven(self, connection: int, turns: int) -> None:
        self.in_step[connection] = turns

    def out_of_step(self, connection: int, why: str) -> None:
        self.out[connection] = why

    def lose_answers(self, connection: int, why: str, *, silent: bool) -> None:
        self.ended[connection] = silent

    def trust_answers(self, connection: int, turns: int) -> None:
        self.stand[connection] = turns


@asynccontextmanager
async def kept(client: Client, heard: Heard | None = None) -> AsyncIterator[Client]:
    """Open a client that reuses its connections."""
    async with client, client.keep_connections(heard or Heard()):
        yield client
