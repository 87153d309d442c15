"""One HTTP session to one endpoint. `send` never raises for what a request met: it returns a
Response or a Failure.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

from serve_eval.client.attempts import retry, starting
from serve_eval.client.attempts.attempt import AttemptSender
from serve_eval.client.attempts.liveness import LivenessGuard
from serve_eval.client.attempts.outcome import Missed, OutcomeReader
from serve_eval.client.attempts.patience import SAMPLE, Patience, Wait
from serve_eval.client.attempts.scheme import other_scheme
from serve_eval.client.attempts.tries import Tries
from serve_eval.client.http1.transport import Http1Transport
from serve_eval.client.questions.endpoint_questions import EndpointQuestions
from serve_eval.client.questions.raw_exchange import GET_S, RawExchange
from serve_eval.client.request_headers import holds_key, request_headers
from serve_eval.client.request_ids import RequestIds
from serve_eval.client.step_ledger import StepListener
from serve_eval.client.transport import RequestHead, TransportFactory, TransportSettings
from serve_eval.client.wire_format import logprobs, server_timing, wire
from serve_eval.client.wire_format.reply import Reply
from serve_eval.errors import EndpointError
from serve_eval.masking import Masking
from serve_eval.schema import Attempt, Endpoint, Failure, Limits, LogprobsForm, Request, Response

UNREACHABLE_HINT = (
    "Is the server up, on that host and port? A server that still loads its model refuses"
    " connections."
)


class Client:
    """Sends requests to `endpoint` within `limits`.

    `api_key`, `headers` and `proxy` (already expanded) are held in memory only; a header
    Authorization comes before the key. `masking` takes the key, the proxy's password and the
    `masked` strings out of everything that is received, before any of it is cut, kept or shown.
    `transport` makes the connections.

    `retry_budget` is the number of retries that all samples together may still spend, `retries`
    what they spent. `liveness` is where requests wait while no server listens, as long as it is
    watched; `patience`, there while the session is open, knows how long the endpoint has been
    silent. `logprobs_form` names the fields that ask for the log-probabilities of prompts. Each
    request has a connection of its own but within `keeping`.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
        ca_bundle: str | None = None,
        masked: Sequence[str] = (),
        max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
        transport: TransportFactory = Http1Transport,
    ) -> None:
        self.endpoint, self.limits, self.max_tokens_field = endpoint, limits, max_tokens_field
        self.liveness = LivenessGuard(limits.outage_timeout_s)
        self.start = starting.Start(limits.outage_timeout_s, self.liveness, self._still_starting)
        self.retries, self.retry_budget = 0, limits.retry_budget
        self.logprobs_form: LogprobsForm = "echo"
        self._headers, self._path = (
            request_headers(api_key, headers or {}),
            urlsplit(endpoint.base_url).path,
        )
        self._ids, self._rng = RequestIds(), random.Random()
        self.transport = transport(
            TransportSettings(
                base_url=endpoint.base_url,
                models_path=self._path + "/models",
                headers=self._headers,
                ids=self._ids,
                proxy=proxy,
                ca_bundle=ca_bundle,
                connect_timeout_s=limits.connect_timeout_s,
                max_response_bytes=limits.max_response_bytes,
            )
        )
        through = self.transport.proxy
        self.masking = Masking(
            [api_key or "", *masked, *([through.password, through.basic] if through else [])]
        )
        wants_timing = server_timing.is_asked_of(endpoint)
        self._heads = self._prepare_heads({server_timing.RETURN: "1"} if wants_timing else {})
        self._reader = OutcomeReader(self.masking, limits.connect_timeout_s)
        self.attempts = AttemptSender(
            self.transport,
            limits,
            ids=self._ids,
            masking=self.masking,
            reader=self._reader,
            liveness=self.liveness,
            wants_timing=wants_timing,
        )
        mask = self.masking.body if self.masking else None
        self._raw = RawExchange(
            self.transport,
            self._headers,
            self._reader,
            mask=mask,
            max_bytes=limits.max_response_bytes,
        )
        self._questions = EndpointQuestions(self._raw, self._path, self.start, self._reader)

    def _prepare_heads(self, asking: Mapping[str, str]) -> dict[str, RequestHead]:
        routes = wire.COMPLETIONS, wire.CHAT_COMPLETIONS
        heads = {
            route: RequestHead("POST", self._path + route, {**self._headers, **asking})
            for route in routes
        }
        for head in heads.values():
            self.transport.prepare(head)
        return heads

    async def __aenter__(self) -> Self:
        limits = self.limits
        self.patience = Patience(sample_s=limits.sample_timeout_s, stall_s=limits.stall_timeout_s)
        self.attempts.open(self.patience)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.patience.close()
        await self.start.close()
        await self.transport.close()

    async def send(self, request: Request, *, once: bool = False) -> Response | Failure:
        """Return the answer to a request, after at most `max_attempts` attempts (`once`: one), or
        why there is none.

        Attempts, pauses included, are bounded by `sample_timeout_s`. What would fail the same way
        is not tried again. An answer that a stream lost is asked for again without streaming, and a
        request that met the end of a connection that was used before, or one out of step, on a new
        one: neither counts as an attempt. While no server listens, requests wait. Attempts that
        were refused for that do not count, nor do up to `max_attempts` that were lost when the
        server ended; their time is given back to the sample. While the endpoint says that it is
        starting, requests wait, and none of that is an attempt.
        """
        stream = self.limits.stream and not request.prompt_logprobs
        tries = Tries(most=self.limits.max_attempts, once=once, stream=stream)
        wait = self.patience.begin(time.monotonic())
        try:
            while True:
                try:
                    if self.liveness.closed and not once:
                        await self._wait_for_a_server(wait)
                    return await self._attempt(request, tries, wait)
                except Missed as error:
                    missed = tries.missed = error
                if not await self._again(missed, tries, wait):
                    return tries.failure()
        except asyncio.CancelledError:
            if not wait.cut_off(SAMPLE):
                raise
            tries.out_of_time(f"the sample's {self.limits.sample_timeout_s:g} s")
            return tries.failure()
        finally:
            self.patience.end(wait)

    async def _attempt(self, request: Request, tries: Tries, wait: Wait) -> Response:
        over = logprobs.FIELDS[self.logprobs_form] if request.prompt_logprobs else None
        model, field = self.endpoint.model or "", self.max_tokens_field
        body = wire.encode(request, model, stream=tries.stream, max_tokens_field=field, over=over)
        head = self._heads[wire.route(request.prompt)]
        return await self.attempts.attempt(
            request, head, body, wait, tries.attempts, stream=tries.stream, fresh=tries.fresh
        )

    async def _again(self, missed: Missed, tries: Tries, wait: Wait) -> bool:
        """Return whether to make another attempt, after the pause before it. `tries.missed` gets a
        note why not.
        """
        if missed.starting and not tries.once:
            tries.attempts.pop()  # nothing was attempted
            if await self._wait_for_the_start(wait):
                return True
            tries.missed = missed.append_note(self.start.in_vain)
            return False
        if tries.again_at_once(missed):
            return True
        if tries.may_be_outage(missed) and await self._wait_for_a_server(wait, tries.attempts[-1]):
            tries.excuse(missed)
            return True
        if tries.over(missed):
            return False
        if self.retry_budget is not None and self.retries >= self.retry_budget:
            tries.missed = missed.append_note("not tried again: the retry budget is spent")
            return False
        self.retries += 1
        await asyncio.sleep(retry.pause_s(tries.counted, missed.retry_after, self._rng))
        return True

    async def _wait_for_a_server(self, wait: Wait, lost: Attempt | None = None) -> bool:
        """Return whether no server listened, once one does. The sample's time stands still
        meanwhile, and is given what the attempt took that was `lost` by that.
        """
        with wait.pause():
            outage = await self.liveness.outage(
                self.transport.address.host, self.transport.address.port
            )
        if outage and lost is not None:
            wait.until += lost.end_s - lost.start_s
        return outage

    async def _wait_for_the_start(self, wait: Wait) -> bool:
        """Return whether the endpoint has started, once it says so no more or took too long, which
        ends a run. The sample's time stands still meanwhile.
        """
        with wait.pause():
            started = await self.start.over()
        if not started and self.liveness.watched:
            raise EndpointError(
                f"{self.endpoint.base_url}: {self.start.in_vain}", hint=starting.HINT
            )
        return started

    async def _still_starting(self) -> bool:
        return await self._questions.still_starting(starting.LOOK_S)

    @property
    def session(self) -> str:
        """Return the beginning of the ids of all its requests."""
        return self._ids.own

    @property
    def max_in_flight(self) -> int:
        """Return the most requests that were in flight at once."""
        return self.attempts.max_in_flight

    @property
    def cancelled(self) -> int:
        """Return the number of requests that were sent and given up by their senders."""
        return self.attempts.cancelled

    def now(self) -> float:
        """Return the time on the clock of the attempts: seconds since 1970 in UTC that never
        jump.
        """
        return self.attempts.now()

    @asynccontextmanager
    async def keep_connections(self, listener: StepListener) -> AsyncIterator[None]:
        """Use connections for many requests within the block, whose `listener` takes answers back
        that a connection out of step gave. `settle` comes before its end where what came is to
        count.
        """
        self.transport.ledger.listen(listener)
        watch = asyncio.create_task(self.transport.watch())
        try:
            yield
        finally:
            watch.cancel()
            self.transport.ledger.listen(None)

    @property
    def alone(self) -> bool:
        """Return whether each request has a connection of its own for good."""
        return self.transport.ledger.alone

    def go_alone(self) -> None:
        """From now on each request has a connection of its own."""
        self.transport.ledger.go_alone()

    async def settle(self) -> None:
        """Check all connections that nobody uses, in a few seconds at most."""
        await self.transport.settle()

    def list_open(self) -> frozenset[int]:
        """Return the numbers of the open connections, which may still be checked."""
        return self.transport.list_open()

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = GET_S,
        most_bytes: int | None = None,
    ) -> Reply | Failure:
        """Send one request as it stands, once, on a connection of its own; event streams come as
        they are too.

        `path` is that of the whole URL. A reply that is not whole has an `error`: TooLarge beyond
        `most_bytes`, at which the connection is closed, TimeoutError after `timeout_s`. A Failure
        says why there is none.
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
        """Return the ids that /v1/models lists; empty for a 200 that lists none. A Failure has any
        other status, 404 where there is no such route (a disaggregated orchestrator).
        """
        return await self._questions.models()

    @property
    def sends_key(self) -> bool:
        """Return whether something that looks like a key goes with every request."""
        return holds_key(self._headers)

    async def other_scheme(self) -> str:
        """Return a hint where the server speaks https instead of http, or the reverse; else an
        empty text.
        """
        return (
            "" if self.transport.proxy is not None else await other_scheme(self.endpoint.base_url)
        )

    async def context_tokens(self) -> int | None:
        """Return how many tokens a prompt and its answer may have together, where the endpoint
        tells it.
        """
        return await self._questions.context_tokens(self.endpoint.model)

    async def describe(self) -> dict[str, object]:
        """Return what the endpoint tells of itself: `models` that it lists, the `server`,
        `version`.
        """
        return await self._questions.describe()

    async def special_tokens(self) -> dict[str, str]:
        """Return the texts of special tokens by their names, as far as the endpoint tells them."""
        return await self._questions.special_tokens()

    async def count_hidden_retries(self) -> dict[str, int]:
        """Return how often an orchestrator asked its servers again, by their kind; empty where
        nobody counts.
        """
        return await self._questions.count_hidden_retries()
