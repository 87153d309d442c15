"""Send requests to one endpoint in one HTTP session.

`send` never raises for a failed request: it returns a Response or a Failure.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Literal, Self
from urllib.parse import urlsplit

from msgspec import UNSET

from serve_eval.client.attempts import liveness, outcome
from serve_eval.client.attempts.attempt import AttemptSender
from serve_eval.client.attempts.liveness import LivenessGuard
from serve_eval.client.attempts.outcome import Missed, OutcomeReader, Tries
from serve_eval.client.attempts.timing import SAMPLE, Patience, Wait
from serve_eval.client.http1.transport import Http1Transport
from serve_eval.client.questions import EndpointQuestions, EndpointReports, RawExchange
from serve_eval.client.request import RequestEncoder, RequestIds, holds_key, request_headers
from serve_eval.client.tls import Certificates, advise_unanswered
from serve_eval.client.traffic import KnownThoughts
from serve_eval.client.transport import RequestHead, StepListener, TransportSettings
from serve_eval.client.wire_format import logprobs, response_head, wire
from serve_eval.errors import EndpointError
from serve_eval.masking import Masking
from serve_eval.schema import (
    BY_ID,
    CHAT_ROUTES,
    Attempt,
    ChatRoute,
    Endpoint,
    Failure,
    Limits,
    LogprobsForm,
    Request,
    Response,
    Route,
    SendMedia,
)

UNREACHABLE_HINT = (
    "Check that the server is up, on that host and port. A server that is still loading its model"
    " refuses connections."
)


def explain_unreachable(client: Client, said: str) -> str:
    """Return what to do about an endpoint without an answer, from the words of the failure."""
    if not client.endpoint.base_url.startswith("https"):
        return UNREACHABLE_HINT
    shown = client.shows_certificate
    return advise_unanswered(said, shows_certificate=shown) or UNREACHABLE_HINT


class Client(EndpointReports):
    """Sends requests to `endpoint` within `limits`.

    `api_key`, `headers` and `proxy` (already expanded) are kept in memory only; a header
    Authorization replaces the key. `masking` removes the key, the proxy's password and the `masked`
    strings from everything received, before it is cut, kept or shown.

    All samples together may spend `retry_budget` retries; `retries` counts those spent. `liveness`,
    if it is being watched, makes requests wait while no server listens. `patience` exists while the
    session is open and knows how long the endpoint has been silent. `logprobs_form` names the
    fields that request the log-probabilities of prompts. `chat_route` answers prompts that are
    messages; with `names_answers`, its server keeps the turns of conversations. `thoughts` is what
    answers have shown of the model's thoughts. Each request has a connection of its own, except
    within `keep_connections`. `conversation_id` is the place of the id that conversations are sent
    with (None: they have none).
    """

    def __init__(
        self,
        endpoint: Endpoint,
        limits: Limits,
        *,
        api_key: str | None = None,
        headers: Mapping[str, str] | None = None,
        proxy: str | None = None,
        certificates: Certificates | None = None,
        masked: Sequence[str] = (),
        max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens",
        send_media: SendMedia = "inline",
        route: ChatRoute = "chat",
        conversation_id: str | None = None,
    ) -> None:
        self.endpoint, self.limits, self.max_tokens_field = endpoint, limits, max_tokens_field
        self.chat_route = chat = CHAT_ROUTES[route]
        self.names_answers, self.conversation_id = route == BY_ID, conversation_id
        self.encoder = RequestEncoder(endpoint.model or "", max_tokens_field, send_media, chat)
        self.liveness = LivenessGuard(limits.outage_timeout_s)
        self.start = liveness.Start(limits.outage_timeout_s, self.liveness, self._still_starting)
        self.retries, self.retry_budget = 0, limits.retry_budget
        self.logprobs_form: LogprobsForm = "echo"
        self.thoughts = KnownThoughts()
        self._headers, self._path = (
            request_headers(api_key, headers or {}),
            urlsplit(endpoint.base_url).path,
        )
        self._ids, self._rng = RequestIds(), random.Random()
        self.transport = Http1Transport(
            TransportSettings(
                base_url=endpoint.base_url,
                models_path=self._path + "/models",
                headers=self._headers,
                ids=self._ids,
                proxy=proxy,
                certificates=certificates or Certificates(),
                connect_timeout_s=limits.connect_timeout_s,
                max_response_bytes=limits.max_response_bytes,
            )
        )
        through = self.transport.proxy
        self.shows_certificate = bool(certificates and certificates.client_cert)
        self.masking = Masking(
            [api_key or "", *masked, *([through.password, through.basic] if through else [])]
        )
        wants_timing = response_head.is_asked_of(endpoint)
        self._heads = self._prepare_heads({response_head.RETURN: "1"} if wants_timing else {})
        self._reader = OutcomeReader(self.masking, limits.connect_timeout_s)
        self.attempts = AttemptSender(
            self.transport,
            limits,
            url=endpoint.base_url,
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

    def _prepare_heads(self, asking: Mapping[str, str]) -> dict[Route, RequestHead]:
        heads = {
            route: RequestHead("POST", self._path + route, {**self._headers, **asking})
            for route in Route
        }
        for head in heads.values():
            self.transport.prepare(head)
        return heads

    async def __aenter__(self) -> Self:
        limits = self.limits
        self.patience = Patience(sample_s=limits.sample_timeout_s, stall_s=limits.stall_timeout_s)
        self.attempts.open(self.patience)
        return self

    async def __aexit__(self, *_: object) -> None:
        self.patience.close()
        await self.start.close()
        await self.transport.close()

    async def send(
        self,
        request: Request,
        *,
        once: bool = False,
        alone: bool = False,
        headers: Mapping[str, str] | None = None,
    ) -> Response | Failure:
        """Return the answer to a request, or the failure after its last attempt.

        `headers` go with this request alone, in addition to those of the session.

        Makes up to `max_attempts` attempts (`once`: one) within `sample_timeout_s`, pauses
        included; `alone`: each on a connection of its own. A failure that would recur is not
        retried. If a stream lost the answer, the request is sent again immediately without
        streaming.

        Some attempts do not count. If a reused connection had ended or was out of step, the request
        is sent again on a new one. While no server listens, requests wait. An attempt that was
        refused meanwhile does not count. Neither do up to `max_attempts` attempts that were lost
        when the server ended. The time of these attempts does not count towards the sample's limit.
        One that a spent quota refused while others were answered does not count either, but its
        time does. Requests also wait while the endpoint reports that it is starting.
        """
        asked = self.limits.stream if request.recorded is UNSET else request.recorded.streamed
        stream = asked and not request.prompt_logprobs
        tries = Tries(
            most=self.limits.max_attempts,
            once=once,
            stream=stream,
            alone=alone,
            answered=self.attempts.answered,
        )
        wait = self.patience.begin(time.monotonic())
        try:
            while True:
                try:
                    if self.liveness.closed and not once:
                        await self._wait_for_a_server(wait)
                    over = logprobs.FIELDS[self.logprobs_form] if request.prompt_logprobs else None
                    # No name here holds the body while the answer is awaited: it may be a video.
                    return await self._attempt(
                        request,
                        self.encoder.encode_at_once(request, stream=tries.stream, over=over)
                        or await self.encoder.encode(request, stream=tries.stream, over=over),
                        tries,
                        wait,
                        headers,
                    )
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

    def _attempt(
        self,
        request: Request,
        body: bytes,
        tries: Tries,
        wait: Wait,
        headers: Mapping[str, str] | None,
    ) -> Awaitable[Response]:
        route = wire.find_route(request, self.chat_route)
        head = self._heads[route]
        headers = headers or request.headers or None
        if headers:
            head = RequestHead(head.method, head.path, {**head.headers, **headers})
        return self.attempts.attempt(
            request,
            head,
            body,
            wait,
            tries.attempts,
            stream=tries.stream,
            fresh=tries.fresh,
            alone=tries.alone,
            route=route,
        )

    async def _again(self, missed: Missed, tries: Tries, wait: Wait) -> bool:
        """Pause and return True if another attempt follows; else return False.

        If the start of the endpoint or the retry budget is the reason for False, adds a note about
        it to `tries.missed`.
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
        if tries.excuse_quota(missed, self.attempts.answered):
            await asyncio.sleep(outcome.pause_s(1, missed.retry_after, self._rng))
            return True
        if tries.over(missed):
            return False
        if self.retry_budget is not None and self.retries >= self.retry_budget:
            tries.missed = missed.append_note("not retried: the retry budget is spent")
            return False
        self.retries += 1
        await asyncio.sleep(outcome.pause_s(tries.counted, missed.retry_after, self._rng))
        return True

    async def _wait_for_a_server(self, wait: Wait, lost: Attempt | None = None) -> bool:
        """Wait until a server listens, and return True if none did before.

        The wait does not count towards the sample's time limit. Neither does the attempt `lost`, if
        the server's end is the cause.
        """
        with wait.pause():
            outage = await self.liveness.outage(
                self.transport.address.host, self.transport.address.port
            )
        if outage and lost is not None:
            wait.until += lost.end_s - lost.start_s
        return outage

    async def _wait_for_the_start(self, wait: Wait) -> bool:
        """Return True once the endpoint has started, False if it takes too long.

        The wait does not count towards the sample's time limit. In a run, which watches `liveness`,
        raises EndpointError instead of returning False.
        """
        with wait.pause():
            started = await self.start.over()
        if not started and self.liveness.watched:
            raise EndpointError(
                f"{self.endpoint.base_url}: {self.start.in_vain}", hint=liveness.HINT
            )
        return started

    async def _still_starting(self) -> bool:
        return await self._questions.still_starting(liveness.LOOK_S)

    @property
    def session(self) -> str:
        """The common beginning of all request ids of this client."""
        return self._ids.own

    @property
    def sent(self) -> int:
        """The number of requests for an answer that were sent, at most."""
        return self.attempts.sent + self._raw.posted

    @property
    def max_in_flight(self) -> int:
        """The highest number of requests in flight at the same time."""
        return self.attempts.max_in_flight

    @property
    def saw_servers(self) -> bool:
        """True if a reply named the servers that took part in it."""
        return self.attempts.saw_servers

    @property
    def cancelled(self) -> int:
        """The number of requests that were sent and then cancelled by their senders."""
        return self.attempts.cancelled

    def now(self) -> float:
        """Return the time of the attempts' clock: UTC seconds since 1970 that never jump."""
        return self.attempts.now()

    @asynccontextmanager
    async def keep_connections(self, listener: StepListener) -> AsyncIterator[None]:
        """Reuse connections within the block.

        `listener` takes back answers from a connection that was out of step. Call `settle` before
        the block ends if all answers in it must count.
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
        """True if each request has a connection of its own for the rest of the session."""
        return self.transport.ledger.alone

    def go_alone(self, why: str) -> None:
        """Give each request a connection of its own from now on, for the reason `why`."""
        self.transport.ledger.go_alone(why)

    async def settle(self) -> None:
        """Check all unused connections, which takes a few seconds at most."""
        await self.transport.settle()

    def list_open(self) -> frozenset[int]:
        """Return the numbers of the open connections, which can still be checked."""
        return self.transport.list_open()

    @property
    def sends_key(self) -> bool:
        """True if every request carries something that looks like a key."""
        return holds_key(self._headers)
