"""Ask an endpoint what it reports about itself, and exchange single requests with it."""

from __future__ import annotations

from serve_eval.client.attempts.outcome import Missed
from serve_eval.client.attempts.scheme import other_scheme
from serve_eval.client.questions.endpoint_questions import EndpointQuestions
from serve_eval.client.questions.engine_metrics import EngineReading
from serve_eval.client.questions.raw_exchange import GET_S, RawExchange
from serve_eval.client.transport import Transport
from serve_eval.client.wire_format.reply import Reply
from serve_eval.schema import Endpoint, Failure, is_stand_in


class EndpointReports:
    """The part of a Client that sends single requests, outside samples and retries."""

    endpoint: Endpoint
    transport: Transport
    _raw: RawExchange
    _questions: EndpointQuestions

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = GET_S,
        most_bytes: int | None = None,
    ) -> Reply | Failure:
        """Send one request as is, once, on a connection of its own; do not parse event streams.

        `path` is the path of the whole URL. An incomplete reply has an `error`: TooLarge beyond
        `most_bytes`, where the connection is closed, or TimeoutError after `timeout_s`. Returns a
        Failure if there is no reply.
        """
        try:
            return await self._raw.send(
                method, path, body, timeout_s=timeout_s, most_bytes=most_bytes
            )
        except Missed as missed:
            return Failure(
                kind=missed.kind,
                message=str(missed),
                status=missed.status,
                retryable=missed.retryable,
            )

    async def models(self) -> list[str] | Failure:
        """Return the ids that /v1/models lists, or a Failure for a status other than 200.

        A 200 that lists none gives an empty list. A server without the route (a disaggregated
        orchestrator) fails with 404.
        """
        return await self._questions.models()

    async def other_scheme(self) -> str:
        """Return a hint if the server speaks https instead of http, or the reverse; else ""."""
        return (
            "" if self.transport.proxy is not None else await other_scheme(self.endpoint.base_url)
        )

    async def context_tokens(self) -> int | None:
        """Return the tokens that prompt and answer may have together, if reported."""
        return await self._questions.context_tokens(self.endpoint.model)

    async def describe(self) -> dict[str, object]:
        """Return the `models`, `server` and `version` that the endpoint reports."""
        return await self._questions.describe()

    async def is_stand_in(self) -> bool:
        """Return True if the version that the endpoint reports is that of a rehearsal's stand-in.

        Commands that make no run folder, whose report says so, recognise a rehearsal by this.
        """
        return is_stand_in((await self.describe()).get("version"))

    async def special_tokens(self) -> dict[str, str]:
        """Return the special tokens that the endpoint reports, by name."""
        return await self._questions.special_tokens()

    async def count_hidden_retries(self) -> dict[str, int]:
        """Return an orchestrator's own retries by kind of server; empty if they are not counted."""
        return await self._questions.count_hidden_retries()

    async def read_engine(self, route: str) -> EngineReading | None:
        """Return the counters of the endpoint's engine, or None if it has none at `route`.

        `route` is one of those in `engine_metrics`, which says of which servers it may be asked.
        """
        return await self._questions.read_engine(route, self.endpoint.model)
