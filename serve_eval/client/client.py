"""One HTTP session to one endpoint. `send` never raises for what a request met: it returns a Response or a Failure."""

from __future__ import annotations

import asyncio
import math
import random
import re
import time
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import TracebackType
from typing import Literal, Self
from urllib.parse import urlsplit

import serve_eval
from serve_eval.client import logprobs, retry, server_timing, starting, wire
from serve_eval.client.answer import microseconds, response
from serve_eval.client.echoes import Echoes
from serve_eval.client.http1.connection import Line
from serve_eval.client.http1.steps import Listener, Steps
from serve_eval.client.http1.transport import CannotConnect, Pool
from serve_eval.client.http1.tunnel import ProxyRefused
from serve_eval.client.liveness import LivenessGuard
from serve_eval.client.patience import SAMPLE, STALL, Patience, Wait
from serve_eval.client.rate import StartRate
from serve_eval.client.reply import BadHttp, Disconnected, Reply
from serve_eval.client.scheme import other_scheme
from serve_eval.client.wire import Said
from serve_eval.errors import EndpointError, PlanError
from serve_eval.masking import Masking
from serve_eval.schema import (
    Attempt,
    Endpoint,
    Failure,
    FailureKind,
    Limits,
    LogprobsForm,
    Request,
    Response,
    ServerTiming,
)

REQUEST_ID = "X-Request-ID"
GET_S = 30.0
"""How long what an endpoint says of itself may take."""
_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2

UNREACHABLE_HINT = "Is the server up, on that host and port? A server that still loads its model refuses connections."


class _Missed(Exception):
    """One attempt that gave no answer."""

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = True,
        retry_after: str | None = None,
        lost_stream: bool = False,
        refused: bool = False,
        stale: bool = False,
        starting: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind, self.status, self.retryable, self.retry_after = kind, status, retryable, retry_after
        self.lost_stream, self.stale, self.refused, self.starting = lost_stream, stale, refused, starting


class Client:
    """Sends requests to `endpoint` within `limits`.

    `api_key`, `headers` and `proxy` (already expanded) are held in memory only; a header Authorization comes before the
    key. `masking` takes the key, the proxy's password and the `masked` strings out of everything that is received,
    before any of it is cut, kept or shown.

    `retry_budget` is the number of retries that all samples together may still spend, `retries` what they spent.
    `cancelled` counts the requests that were sent and given up by their senders. `door` is where requests wait
    while no server listens, as long as it is watched; `patience`, there while the session is open, knows how long the
    endpoint has been silent. `logprobs_form` is how log-probabilities of prompts are asked for. `steps` finds
    connections that give the answers to other requests: each request has a connection of its own but within `keeping`.
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
    ) -> None:
        self.endpoint, self.limits, self.door = endpoint, limits, LivenessGuard(limits.outage_timeout_s)
        self.retries, self.retry_budget = 0, limits.retry_budget
        self._in_flight = self.max_in_flight = self.cancelled = 0
        self.max_tokens_field = max_tokens_field
        self.logprobs_form: LogprobsForm = "echo"
        self._rate = StartRate(limits.rate_limit) if limits.rate_limit else None
        self._pool = Pool(
            endpoint.base_url, proxy=proxy, ca_bundle=ca_bundle, connect_timeout_s=limits.connect_timeout_s
        )
        self._path = urlsplit(endpoint.base_url).path
        self._headers = _headers(api_key, headers or {})
        self._wants_timing = server_timing.asked_of(endpoint)
        asking = {server_timing.RETURN: "1"} if self._wants_timing else {}
        self._heads = {
            route: self._pool.head("POST", self._path + route, {**self._headers, **asking}) + f"{REQUEST_ID}: ".encode()
            for route in (wire.COMPLETIONS, wire.CHAT_COMPLETIONS)
        }
        proxy_secrets = [self._pool.proxy.password, self._pool.proxy.basic] if self._pool.proxy else []
        self.masking = Masking([api_key or "", *masked, *proxy_secrets])
        self._masked = self.masking.body if self.masking else None
        self._echoes = Echoes()
        self._rng = random.Random()
        self._epoch = time.time() - time.monotonic()
        self._id_start, self._sent = str(uuid.uuid4())[:-12], 0
        head = self._pool.head("GET", self._path + "/models", self._headers) + f"{REQUEST_ID}: ".encode()
        self.steps = self._pool.steps = Steps(head, self._new_id, self._id_start, limits.max_response_bytes)
        self.start = starting.Start(limits.outage_timeout_s, self.door, self._still_starting)

    async def __aenter__(self) -> Self:
        limits = self.limits
        self.patience = Patience(sample_s=limits.sample_timeout_s, stall_s=limits.stall_timeout_s)
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.patience.close()
        await self.start.close()
        await self._pool.close()

    async def send(self, request: Request, *, once: bool = False) -> Response | Failure:
        """The answer to a request, after at most `max_attempts` attempts (`once`: one), or why there is none.

        Attempts, pauses included, are bounded by `sample_timeout_s`. What would fail the same way is not tried again.
        An answer that a stream lost is asked for again without streaming, and a request that met the end of a
        connection that was used before, or one out of step, on a new one: none of them counts as an attempt that may
        be made no more. While no server listens requests wait at the door. An attempt that was refused since nobody did
        counts neither, and so do `max_attempts` that were lost when the server ended; their time is given back to the
        sample. While the endpoint says that it is starting, requests wait, and none of that is an attempt.
        """
        attempts: list[Attempt] = []
        uncounted, lost, fresh = 0, 0, False
        given_up = f"the sample's {self.limits.sample_timeout_s:g} s"
        missed: _Missed | None = None
        stream = self.limits.stream and not request.prompt_logprobs
        wait = self.patience.begin(time.monotonic())
        try:
            while True:
                try:
                    if self.door.closed and not once:
                        await self._wait_at_the_door(wait)
                    return await self._attempt(request, attempts, wait, stream=stream, fresh=fresh)
                except _Missed as error:
                    missed = error
                if missed.starting and not once:
                    attempts.pop()  # nothing was attempted
                    if await self._wait_for_the_start(wait):
                        continue
                    missed = self._with_note(missed, self.start.in_vain)
                    break
                fresh = missed.stale
                if missed.lost_stream and stream:
                    stream = False
                    continue
                if fresh:
                    uncounted += 1
                    continue
                excused = missed.refused or lost < self.limits.max_attempts
                may_be_outage = missed.kind is FailureKind.DISCONNECTED and missed.retryable and excused and not once
                if may_be_outage and await self._wait_at_the_door(wait, attempts[-1]):
                    uncounted += 1
                    lost += not missed.refused
                    continue
                if once or not missed.retryable or len(attempts) - uncounted >= self.limits.max_attempts:
                    break
                if not self._may_retry():
                    missed = self._with_note(missed, "not tried again: the retry budget is spent")
                    break
                await asyncio.sleep(retry.pause_s(len(attempts) - uncounted, missed.retry_after, self._rng))
        except asyncio.CancelledError:
            if not wait.cut_off(SAMPLE):
                raise
            if missed is None:
                missed = _Missed(
                    FailureKind.TIMEOUT,
                    f"no answer within {given_up}",
                    status=attempts[-1].status if attempts else None,
                )
            else:
                missed = self._with_note(missed, f"gave up after {given_up}")
        finally:
            self.patience.end(wait)
        return Failure(
            kind=missed.kind,
            message=str(missed),
            status=missed.status,
            retryable=missed.retryable,
            attempts=tuple(attempts),
        )

    @property
    def session(self) -> str:
        """The beginning of the ids of all its requests."""
        return self._id_start

    @asynccontextmanager
    async def keeping(self, listener: Listener) -> AsyncIterator[None]:
        """Connections are used for many requests within the block, whose `listener` takes answers back that a
        connection out of step gave. `settle` comes before its end where what came is to count."""
        self.steps.listen(listener)
        watch = asyncio.create_task(self._pool.watch())
        try:
            yield
        finally:
            watch.cancel()
            self.steps.listen(None)

    async def settle(self) -> None:
        """Checks all connections that nobody uses, in a few seconds at most."""
        await self._pool.settle()

    def kept(self) -> frozenset[int]:
        """The numbers of the open connections, which may still be checked."""
        return frozenset(line.number for line in self._pool.lines if line.usable)

    def _new_id(self) -> str:
        self._sent += 1
        return f"{self._id_start}{self._sent:012x}"

    async def _turn(self, wait: Wait) -> None:
        """Waits for the rate limit; the sample's time stands still meanwhile."""
        began, left = time.monotonic(), wait.until
        wait.until = math.inf
        assert self._rate is not None
        await self._rate.wait()
        wait.until = left + time.monotonic() - began

    async def _wait_at_the_door(self, wait: Wait, lost: Attempt | None = None) -> bool:
        """Return whether no server listened, once one does. The sample's time stands still meanwhile, and is given what
        the attempt took that was `lost` by that."""
        began, left = time.monotonic(), wait.until
        wait.until = math.inf
        first = self._pool.first
        outage = await self.door.outage(first.host, first.port)
        in_vain_s = lost.end_s - lost.start_s if outage and lost is not None else 0.0
        wait.until = left + time.monotonic() - began + in_vain_s
        return outage

    async def _wait_for_the_start(self, wait: Wait) -> bool:
        """Return whether the endpoint has started, once it says so no more or took too long, which ends a run. The
        sample's time stands still meanwhile."""
        began, left = time.monotonic(), wait.until
        wait.until = math.inf
        started = await self.start.over()
        wait.until = left + time.monotonic() - began
        if not started and self.door.watched:
            raise EndpointError(f"{self.endpoint.base_url}: {self.start.in_vain}", hint=starting.HINT)
        return started

    async def _still_starting(self) -> bool:
        """Ask for the models, as any route will do. What is no answer ends the wait: the next request tells why."""
        reply = await self.exchange("GET", self._path + "/models", timeout_s=starting.LOOK_S)
        return isinstance(reply, Reply) and reply.starting

    def _may_retry(self) -> bool:
        """Takes a retry out of the run's budget, if there is one left."""
        if self.retry_budget is not None and self.retries >= self.retry_budget:
            return False
        self.retries += 1
        return True

    @staticmethod
    def _with_note(missed: _Missed, note: str) -> _Missed:
        return _Missed(missed.kind, f"{missed} ({note})", status=missed.status, retryable=missed.retryable)

    async def _attempt(
        self, request: Request, attempts: list[Attempt], wait: Wait, *, stream: bool, fresh: bool
    ) -> Response:
        if self._rate is not None:
            await self._turn(wait)
        self._sent += 1
        request_id = f"{self._id_start}{self._sent:012x}"  # llama-cpp-python refuses one that is no UUID
        over = logprobs.FIELDS[self.logprobs_form] if request.prompt_logprobs else None
        model, field = self.endpoint.model or "", self.max_tokens_field
        body = wire.encode(request, model, stream=stream, max_tokens_field=field, over=over)
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)
        start, line = time.monotonic(), None
        failure: FailureKind | None = FailureKind.TIMEOUT  # what it is when the sample's time limit cuts us off
        reply: Reply | None = None
        status: int | None = None
        connection, turn, unwanted = 0, 0, False
        used = None if fresh else self._pool.idle()
        try:
            line = used or await self._open()
            reply = self._reply()
            self.patience.expect(wait, reply)
            head = self._heads[wire.route(request.prompt)]
            line.send(b"%b%b\r\nContent-Length: %d\r\n\r\n%b" % (head, request_id.encode(), len(body), body), reply)
            await reply.ended
            if line.out and used is not None:
                raise _Missed(FailureKind.INVALID_RESPONSE, "an answer too many came on its connection", stale=True)
            said = self._said(reply, request)
            named = None if reply.request_id is None else self.steps.named(reply.request_id)
            if named is None and said.id is not None and self._id_start in said.id:
                named = self.steps.named(said.id)
            if named is not None and named != request_id:
                self.steps.stray(line, "an answer named another request of ours")
                why = f"the answer to another request: it names {named}"
                raise _Missed(FailureKind.INVALID_RESPONSE, why, stale=used is not None)
            if self._echoes.seen(line, said):
                raise _Missed(
                    FailureKind.INVALID_RESPONSE,
                    "the connection gave the answer to an earlier request once more",
                )
            status, failure, self.door.spent_s = reply.status, None, 0.0
            if named is not None:
                self.steps.prove_next(line)
            elif used is not None:
                connection, turn = line.number, line.turns + 1
        except asyncio.CancelledError:
            status = _status(reply)
            if not wait.cut_off(STALL):
                unwanted = reply is not None and wait.over is None
                self.cancelled += unwanted
                raise
            message = f"no data for {self.limits.stall_timeout_s:g} s"
            raise _Missed(FailureKind.TIMEOUT, message, status=status) from None
        except _Missed as missed:
            failure = missed.kind
            status = missed.status = missed.status or _status(reply)
            if used is not None and failure is FailureKind.DISCONNECTED and reply is not None and not reply.received:
                missed.stale = True
                self._pool.was_stale(used, time.monotonic())
            raise
        finally:
            end = time.monotonic()
            self.patience.expect_no_more(wait, end)
            self._in_flight -= 1
            # After an error a connection may still get the answer that the error came before.
            if failure is not None and reply is not None:
                reply.settle()
            if line is not None:
                if failure is None and reply is not None and reply.whole:
                    self._pool.keep(line, end, used=used is not None)
                elif reply is not None and (reply.whole or unwanted):
                    self._pool.retire(line, None if reply.whole else reply)
                else:
                    line.abort()
            attempts.append(
                Attempt(
                    start_s=microseconds(self._epoch + start),
                    end_s=microseconds(self._epoch + end),
                    failure=failure,
                    status=status,
                    request_id=request_id,
                    streamed=stream,
                    connection=connection,
                    turn=turn,
                    timing=None if reply is None else self._timing(reply),
                )
            )
        streamed = reply.stream
        return response(
            request,
            said,
            start=start,
            end=end,
            first_at=None if streamed is None else streamed.first_at,
            last_at=None if streamed is None else streamed.last_at,
            attempts=tuple(attempts),
        )

    def _reply(self) -> Reply:
        limit = self.limits.max_response_bytes
        now, wants = time.monotonic(), self._wants_timing
        return Reply(self._loop.create_future(), limit=limit, now=now, mask=self._masked, metrics=wants)

    def _timing(self, reply: Reply) -> ServerTiming | None:
        return self.masking.value(reply.timing) if self.masking else reply.timing

    async def _open(self) -> Line:
        """A new connection. Raises _Missed."""
        try:
            return await self._pool.open()
        except TimeoutError as error:
            raise _Missed(FailureKind.TIMEOUT, f"no connection within {self.limits.connect_timeout_s:g} s") from error
        except CannotConnect as error:
            kind, message = FailureKind.DISCONNECTED, self._brief(str(error))
            raise _Missed(kind, message, retryable=error.may_pass, refused=error.refused) from error
        except ProxyRefused as error:
            raise _Missed(
                FailureKind.HTTP_ERROR,
                str(error),
                status=error.status,
                retryable=retry.worth_retrying(error.status, ""),
            ) from error
        except (BadHttp, Disconnected) as error:
            raise _missed(error, self._brief(str(error))) from error

    def _said(self, reply: Reply, request: Request) -> Said:
        """What a reply says. Raises _Missed when that is no answer."""
        status = reply.status
        if reply.error is not None:
            raise self._error(reply.error)
        if 300 <= status < 400:
            raise _Missed(FailureKind.HTTP_ERROR, "a redirect, which is not followed", retryable=False)
        if status >= 400:
            message = wire.describe(reply.content, self.masking.message)
            raise _Missed(
                FailureKind.HTTP_ERROR,
                f"HTTP {status}: {starting.SAID}" if reply.starting else f"HTTP {status}: {message}",
                retryable=retry.worth_retrying(status, message),
                retry_after=reply.retry_after,
                starting=reply.starting,
            )
        try:
            if request.prompt_logprobs:
                said = logprobs.decode(reply.content, reply.content_type, str(request.prompt))
            elif reply.stream is None:
                return wire.decode(reply.content, reply.content_type)
            else:
                said = reply.stream.said()
        except wire.InvalidResponse as error:
            raise self._error(error) from error
        # The pieces of a stream, or the tokens of a prompt, may spell a secret together.
        return self.masking.value(said) if self.masking else said

    def _error(self, error: Exception) -> _Missed:
        """What an attempt that ended so amounts to."""
        told = error.told(self.masking.message) if isinstance(error, wire.InvalidResponse) else str(error)
        return _missed(error, self._brief(told))

    def _brief(self, text: str) -> str:
        """A message without what must not be shown, and not longer than one may be."""
        return self.masking.message(text)[: wire.MAX_MESSAGE]

    def now(self) -> float:
        """The time on the clock of the attempts: seconds since 1970 in UTC that never jump."""
        return self._epoch + time.monotonic()

    async def models(self) -> list[str] | Failure:
        """The ids that /v1/models lists; empty for a 200 that lists none. A Failure has any other status, 404 where
        there is no such route (a disaggregated orchestrator)."""
        path = self._path + "/models"
        reply = await self.exchange("GET", path)
        if isinstance(reply, Reply) and reply.starting and await self.start.over():
            reply = await self.exchange("GET", path)
        if isinstance(reply, Failure):
            return reply
        if reply.error is not None:
            missed = self._error(reply.error)
            return Failure(kind=missed.kind, message=str(missed), status=reply.status)
        if reply.status != 200:
            told = self.start.in_vain if reply.starting else wire.describe(reply.content, self.masking.message)
            return Failure(kind=FailureKind.HTTP_ERROR, message=f"HTTP {reply.status}: {told}", status=reply.status)
        return wire.model_ids(reply.content)

    @property
    def sends_key(self) -> bool:
        """Return whether something that looks like a key goes with every request."""
        return any(name.lower() == "authorization" or "key" in name.lower() for name in self._headers)

    async def other_scheme(self) -> str:
        """Return a hint where the server speaks https instead of http, or the reverse; else an empty text."""
        return "" if self._pool.proxy is not None else await other_scheme(self.endpoint.base_url)

    async def context_tokens(self) -> int | None:
        """How many tokens a prompt and its answer may have together, where /v1/models says so (vLLM and others do)."""
        try:
            return wire.context_tokens(await self._get(self._path + "/models"), self.endpoint.model)
        except _Missed:
            return None

    async def describe(self) -> dict[str, object]:
        """What the endpoint tells of itself, as far as it does: `models` that it lists, the `server`, `version`."""
        told: dict[str, object] = {}
        with suppress(_Missed):
            listed = await self._get(self._path + "/models")
            told["models"] = wire.model_ids(listed)
            if (server := wire.server(listed)) is not None:
                told["server"] = server
        with suppress(_Missed):
            version = wire.version(await self._get(self._path.removesuffix("/v1") + "/version"))
            if version is not None:
                told["version"] = version
        return told

    async def special_tokens(self) -> dict[str, str]:
        """The texts of special tokens by their names, such as eos_token, as far as the endpoint tells them: vLLM at
        /tokenizer_info, where it is started to, and llama.cpp at /props."""
        for route in ("/tokenizer_info", "/props"):
            with suppress(_Missed):
                if found := wire.special_tokens(await self._get(self._path.removesuffix("/v1") + route)):
                    return found
        return {}

    async def hidden_retries(self) -> dict[str, int]:
        """How often an orchestrator of trtllm-serve asked its servers again, by their kind, since it was started; empty
        where nobody counts."""
        with suppress(_Missed):
            return wire.hidden_retries(await self._get(self._path.removesuffix("/v1") + "/prometheus/metrics/"))
        return {}

    async def exchange(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = GET_S,
        most_bytes: int | None = None,
    ) -> Reply | Failure:
        """One request as it stands, tried once on a connection of its own: the reply as it came, event streams too,
        or why there is none.

        `path` is that of the whole URL. A reply that is not whole has an `error`: TooLarge beyond `most_bytes`, at
        which the connection is closed, TimeoutError after `timeout_s`.
        """
        try:
            return await self._exchange(method, path, body, timeout_s, most_bytes)
        except _Missed as missed:
            return Failure(kind=missed.kind, message=str(missed), status=missed.status, retryable=missed.retryable)

    async def _exchange(
        self, method: str, path: str, body: bytes | None, timeout_s: float, most_bytes: int | None
    ) -> Reply:
        """Raises _Missed when no answer began."""
        line = reply = None
        limit = self.limits.max_response_bytes if most_bytes is None else most_bytes
        head = self._pool.head(method, path, self._headers)
        length = b"" if body is None else b"Content-Length: %d\r\n" % len(body)
        try:
            async with asyncio.timeout(timeout_s):
                line = await self._open()
                now = time.monotonic()
                reply = Reply(self._loop.create_future(), limit=limit, now=now, raw=True, mask=self._masked)
                line.send(b"%b%b\r\n%b" % (head, length, body or b""), reply)
                await reply.ended
        except TimeoutError as error:
            if reply is None or not reply.status:
                raise _Missed(FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s") from error
            reply.error = TimeoutError(f"no whole answer within {timeout_s:g} s")
        finally:
            if line is not None:
                line.abort()
        if reply.error is not None and not reply.status:
            raise self._error(reply.error)
        return reply

    async def _get(self, path: str) -> bytes:
        """The body of a GET; empty unless the status is 200. Raises _Missed."""
        reply = await self._exchange("GET", path, None, GET_S, None)
        if reply.error is not None:
            raise self._error(reply.error)
        return reply.content if reply.status == 200 else b""


def _headers(api_key: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """What every request says beside what is its own; what is given comes before what is usual. Raises PlanError for
    what cannot be sent."""
    headers = {
        "User-Agent": f"serve-eval/{serve_eval.__version__}",
        "Accept": "*/*",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
    }
    if api_key:
        headers["Authorization"] = f"Bearer {api_key}"
    for name, value in given.items():
        if not _TOKEN.fullmatch(name) or not value.isascii() or not value.isprintable():
            raise PlanError(f"header {name!r}: its name or its value has a character that cannot be sent in a header")
    replaced = {name.lower() for name in given}
    own = {"content-length", "transfer-encoding", REQUEST_ID.lower()}
    return {
        **{name: value for name, value in headers.items() if name.lower() not in replaced},
        **{name: value for name, value in given.items() if name.lower() not in own},
    }


def _status(reply: Reply | None) -> int | None:
    return reply.status or None if reply is not None else None


def _missed(error: Exception, message: str | None = None) -> _Missed:
    """What an attempt that ended with one of the transport's errors, or a wrong answer, amounts to."""
    kinds = {Disconnected: FailureKind.DISCONNECTED, TimeoutError: FailureKind.TIMEOUT}
    kind = kinds.get(type(error), FailureKind.INVALID_RESPONSE)
    return _Missed(kind, str(error) if message is None else message, lost_stream=isinstance(error, wire.LostStream))
