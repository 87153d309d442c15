"""Ask an endpoint about itself. A question without an answer is not an error."""

from __future__ import annotations

from contextlib import suppress

from serve_eval.client.attempts.outcome import Missed, OutcomeReader
from serve_eval.client.attempts.starting import Start
from serve_eval.client.questions import engine_metrics
from serve_eval.client.questions import self_description as read
from serve_eval.client.questions.engine_metrics import EngineReading
from serve_eval.client.questions.raw_exchange import RawExchange
from serve_eval.schema import Failure, FailureKind

ENGINE_S = 10.0
"""Time limit of a request for the counters of an engine, in seconds."""


class EndpointQuestions:
    """Sends requests to the routes next to `path`, the path of the base URL."""

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
        """Return True if the endpoint reports that it is starting. Any route would do.

        Without an answer the wait ends: the next request reports the reason.
        """
        try:
            return (await self._exchange.send("GET", self._models, timeout_s=timeout_s)).starting
        except Missed:
            return False

    async def models(self) -> list[str] | Failure:
        """Return the ids that /v1/models lists, or a Failure for a status other than 200.

        A 200 that lists none gives an empty list. A server without the route (a disaggregated
        orchestrator) fails with 404.
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
            if reply.status < 400:
                told = "a redirect, which is not followed"
            return Failure(
                kind=FailureKind.HTTP_ERROR,
                message=f"HTTP {reply.status}: {told}",
                status=reply.status,
            )
        if read.is_page(reply.content):
            return Failure(
                kind=FailureKind.INVALID_RESPONSE,
                message="an HTML page, not a list of models",
            )
        return read.model_ids(reply.content)

    async def context_tokens(self, model: str | None) -> int | None:
        """Return the tokens that prompt and answer may have together, if reported."""
        try:
            return read.context_tokens(await self._exchange.get(self._models), model)
        except Missed:
            return None

    async def describe(self) -> dict[str, object]:
        """Return the `models`, `server` and `version` that the endpoint reports."""
        told: dict[str, object] = {}
        server = None
        with suppress(Missed):
            listed = await self._exchange.get(self._models)
            told["models"] = read.model_ids(listed)
            if (server := read.server(listed)) is not None:
                told["server"] = server
        for route in read.version_routes(server):
            with suppress(Missed):
                version = read.version(await self._exchange.get(self._root + route))
                if version is not None:
                    told["version"] = version
                    break
        return told

    async def special_tokens(self) -> dict[str, str]:
        """Return the special tokens that the endpoint reports, by names such as eos_token.

        vLLM reports them at /tokenizer_info if an option enables it, and llama.cpp at /props.
        """
        for route in ("/tokenizer_info", "/props"):
            with suppress(Missed):
                if found := read.special_tokens(await self._exchange.get(self._root + route)):
                    return found
        return {}

    async def read_engine(self, route: str, model: str | None) -> EngineReading | None:
        """Return the counters of the engine at one of the routes of `engine_metrics`."""
        with suppress(Missed):
            reply = await self._exchange.send(
                "GET",
                self._root + route,
                timeout_s=ENGINE_S,
                most_bytes=engine_metrics.MOST_BYTES,
            )
            if reply.error is None and reply.status == 200:
                return engine_metrics.read_metrics(reply.content, model)
        return None

    async def count_hidden_retries(self) -> dict[str, int]:
        """Return the retries of a trtllm-serve orchestrator since its start, by kind of server."""
        with suppress(Missed):
            return read.count_hidden_retries(
                await self._exchange.get(self._root + "/prometheus/metrics/")
            )
        return {}
