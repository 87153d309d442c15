"""Questions to an endpoint about itself. One that cannot be answered is no error."""

from __future__ import annotations

from contextlib import suppress

from serve_eval.client.attempts.outcome import Missed, OutcomeReader
from serve_eval.client.attempts.starting import Start
from serve_eval.client.questions import self_description as read
from serve_eval.client.questions.raw_exchange import RawExchange
from serve_eval.schema import Failure, FailureKind


class EndpointQuestions:
    """Asks at the routes that servers have next to `path`, the path of the base URL."""

    def __init__(
        self, exchange: RawExchange, path: str, start: Start, reader: OutcomeReader
    ) -> None:
        self._exchange, self._models, self._root = (
            exchange,
            path + "/models",
            path.removesuffix("/v1"),
        )
        self._start, self._reader = start, reader

    async def still_starting(self, timeout_s: float) -> bool:
        """Ask for the models, as any route will do. What is no answer ends the wait: the next
        request tells why.
        """
        try:
            return (await self._exchange.send("GET", self._models, timeout_s=timeout_s)).starting
        except Missed:
            return False

    async def models(self) -> list[str] | Failure:
        """Return the ids that /v1/models lists; empty for a 200 that lists none. A Failure has any
        other status, 404 where there is no such route (a disaggregated orchestrator).
        """
        try:
            reply = await self._exchange.send("GET", self._models)
            if reply.starting and await self._start.over():
                reply = await self._exchange.send("GET", self._models)
        except Missed as missed:
            return Failure(
                kind=missed.kind,
                message=str(missed),
                status=missed.status,
                retryable=missed.retryable,
            )
        if reply.error is not None:
            cut = self._reader.of_error(reply.error)
            return Failure(kind=cut.kind, message=str(cut), status=reply.status)
        if reply.status != 200:
            told = (
                self._start.in_vain if reply.starting else self._reader.describe_body(reply.content)
            )
            return Failure(
                kind=FailureKind.HTTP_ERROR,
                message=f"HTTP {reply.status}: {told}",
                status=reply.status,
            )
        return read.model_ids(reply.content)

    async def context_tokens(self, model: str | None) -> int | None:
        """Return how many tokens a prompt and its answer may have together, where /v1/models tells
        it.
        """
        try:
            return read.context_tokens(await self._exchange.get(self._models), model)
        except Missed:
            return None

    async def describe(self) -> dict[str, object]:
        """Return `models`, `server` and `version`, as far as the endpoint tells them."""
        told: dict[str, object] = {}
        with suppress(Missed):
            listed = await self._exchange.get(self._models)
            told["models"] = read.model_ids(listed)
            if (server := read.server(listed)) is not None:
                told["server"] = server
        with suppress(Missed):
            version = read.version(await self._exchange.get(self._root + "/version"))
            if version is not None:
                told["version"] = version
        return told

    async def special_tokens(self) -> dict[str, str]:
        """Return the texts of special tokens by their names, such as eos_token.

        vLLM tells them at /tokenizer_info, where it is started to, and llama.cpp at /props.
        """
        for route in ("/tokenizer_info", "/props"):
            with suppress(Missed):
                if found := read.special_tokens(await self._exchange.get(self._root + route)):
                    return found
        return {}

    async def count_hidden_retries(self) -> dict[str, int]:
        """Return how often an orchestrator of trtllm-serve asked its servers again, by their kind,
        since its start.
        """
        with suppress(Missed):
            return read.count_hidden_retries(
                await self._exchange.get(self._root + "/prometheus/metrics/")
            )
        return {}
