"""One HTTP session to one endpoint. `send` never raises for what a request met: it returns a Response or a Failure."""

from __future__ import annotations

import asyncio
import math
import random
import secrets
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Literal, NamedTuple, Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from serve_eval.client import retry, wire
from serve_eval.client.answer import microseconds, response
from serve_eval.client.connector import REQUEST_ID, Connector
from serve_eval.client.door import Door
from serve_eval.client.patience import SAMPLE, STALL, Patience, Wait
from serve_eval.client.rate import StartRate
from serve_eval.client.stream import StreamedAnswer
from serve_eval.client.wire import Said
from serve_eval.errors import EndpointError, PlanError
from serve_eval.schema import Attempt, Endpoint, Failure, FailureKind, Limits, Request, Response

KEEPALIVE_S = 3.0
"""Below the 5 s after which trtllm-serve closes an idle connection: a POST on a closing connection is lost."""
AFTER_DONE_S = 1.0
"""How long a stream that said [DONE] may take to end before its connection is given up."""
AFTER_FINISH_S = 5.0
"""How long the usage and [DONE] are waited for, once a finish_reason said that the answer is whole."""

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
    ) -> None:
        super().__init__(message)
        self.kind, self.status, self.retryable, self.retry_after = kind, status, retryable, retry_after
        self.lost_stream = lost_stream


class _Answer(NamedTuple):
    """What one attempt gave, and when the first and the last token of a stream came."""

    status: int
    said: Said
    first_at: float | None = None
    last_at: float | None = None


class Client:
    """Sends requests to `endpoint` within `limits`.

    `api_key`, `headers` and `proxy` (already expanded) are held in memory only; a header Authorization comes before the
    key. The key, the proxy's password and the `masked` strings are replaced by *** in what is received, so that a
    server that echoes them cannot bring them into a file: in error messages always, in answers from 8 characters on,
    since a shorter one may be a plain word of the answer.

    `retry_budget` is the number of retries that all samples together may still spend, `retries` what they spent.
    `door` is told of refused connections.
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
        self.endpoint, self.limits, self.door = endpoint, limits, Door()
        self.retries, self.retry_budget = 0, limits.retry_budget
        self._in_flight = self.max_in_flight = 0
        self.max_tokens_field = max_tokens_field
        self._rate = StartRate(limits.rate_limit) if limits.rate_limit else None
        self._headers = CIMultiDict({"Accept-Encoding": "identity", "Content-Type": "application/json"})
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._headers.update(headers or {})
        self._proxy, self._proxy_auth = _proxy(proxy)
        secrets_known = [api_key, *masked, self._proxy_auth.password if self._proxy_auth else None]
        longest_first = sorted({secret for secret in secrets_known if secret}, key=len, reverse=True)
        self._secrets = tuple(secret.encode() for secret in longest_first)
        self._ssl = _ssl_context(ca_bundle)
        self._urls = {path: URL(endpoint.base_url + path) for path in (wire.COMPLETIONS, wire.CHAT_COMPLETIONS)}
        self._rng = random.Random()
        self._epoch = time.time() - time.monotonic()
        self._prefix, self._sent = secrets.token_hex(4), 0

    async def __aenter__(self) -> Self:
        limits = self.limits
        self._patience = Patience(sample_s=limits.sample_timeout_s, stall_s=limits.stall_timeout_s)
        self._connector = Connector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=self._ssl)
        self._session = aiohttp.ClientSession(
            connector=self._connector,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=limits.connect_timeout_s),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._patience.close()
        await self._session.close()

    async def send(self, request: Request) -> Response | Failure:
        """The answer to a request, after at most `max_attempts` attempts, or why there is none.

        Attempts, pauses included, are bounded by `sample_timeout_s`. What would fail the same way is not tried again.
        An answer that a stream lost is asked for again without streaming.
        """
        attempts: list[Attempt] = []
        given_up = f"the sample's {self.limits.sample_timeout_s:g} s"
        missed: _Missed | None = None
        stream = self.limits.stream
        wait = self._patience.begin(time.monotonic())
        try:
            while True:
                try:
                    return await self._attempt(request, attempts, wait, stream=stream)
                except _Missed as error:
                    missed = error
                if missed.lost_stream and stream:
                    stream = False
                    continue
                if not missed.retryable or len(attempts) >= self.limits.max_attempts:
                    break
                if not self._may_retry():
                    missed = self._with_note(missed, "not tried again: the retry budget is spent")
                    break
                await asyncio.sleep(retry.pause_s(len(attempts), missed.retry_after, self._rng))
        except asyncio.CancelledError:
            if not wait.cut_off(SAMPLE):
                raise
            if missed is None:
                missed = _Missed(FailureKind.TIMEOUT, f"no answer within {given_up}")
            else:
                missed = self._with_note(missed, f"gave up after {given_up}", retryable=True)
        finally:
            self._patience.end(wait)
        return Failure(
            kind=missed.kind,
            message=str(missed),
            status=missed.status,
            retryable=missed.retryable,
            attempts=tuple(attempts),
        )

    async def _turn(self, wait: Wait) -> None:
        """Waits for the rate limit; the sample's time stands still meanwhile."""
        began, left = time.monotonic(), wait.until
        wait.until = math.inf
        assert self._rate is not None
        await self._rate.wait()
        wait.until = left + time.monotonic() - began

    def _may_retry(self) -> bool:
        """Takes a retry out of the run's budget, if there is one left."""
        if self.retry_budget is not None and self.retries >= self.retry_budget:
            return False
        self.retries += 1
        return True

    @staticmethod
    def _with_note(missed: _Missed, note: str, *, retryable: bool | None = None) -> _Missed:
        retryable = missed.retryable if retryable is None else retryable
        return _Missed(missed.kind, f"{missed} ({note})", status=missed.status, retryable=retryable)

    async def _attempt(self, request: Request, attempts: list[Attempt], wait: Wait, *, stream: bool) -> Response:
        if self._rate is not None:
            await self._turn(wait)
        self._sent += 1
        request_id = f"{self._prefix}-{self._sent}"
        body = wire.encode(request, self.endpoint.model or "", stream=stream, max_tokens_field=self.max_tokens_field)
        self._connector.expect(request_id, wait)
        self._in_flight += 1
        self.max_in_flight = max(self.max_in_flight, self._in_flight)
        start = time.monotonic()
        status: int | None = None
        failure: FailureKind | None = FailureKind.TIMEOUT  # what it is when the sample's time limit cuts us off
        try:
            answer = await self._exchange(request, body, request_id, wait)
            status, failure = answer.status, None
        except _Missed as error:
            status, failure = error.status, error.kind
            raise
        finally:
            end, wait.heard_at = time.monotonic(), math.inf
            self._in_flight -= 1
            self._connector.done(request_id, wait, trusted=failure is None)
            attempts.append(
                Attempt(
                    start_s=microseconds(self._epoch + start),
                    end_s=microseconds(self._epoch + end),
                    failure=failure,
                    status=status,
                    request_id=request_id,
                    streamed=stream,
                )
            )
        return response(
            request,
            answer.said,
            start=start,
            end=end,
            first_at=answer.first_at,
            last_at=answer.last_at,
            attempts=tuple(attempts),
        )

    async def _exchange(self, request: Request, body: bytes, request_id: str, wait: Wait) -> _Answer:
        status = None
        try:
            async with self._session.post(
                self._urls[wire.route(request.prompt)],
                data=aiohttp.BytesPayload(body),
                headers={REQUEST_ID: request_id},
                proxy=self._proxy,
                proxy_auth=self._proxy_auth,
                allow_redirects=False,
            ) as reply:
                status, wait.heard_at = reply.status, time.monotonic()
                answer = await self._read_answer(reply, wait)
        except asyncio.CancelledError:
            if not wait.cut_off(STALL):
                raise
            raise _Missed(
                FailureKind.TIMEOUT, f"no byte for {self.limits.stall_timeout_s:g} s", status=status
            ) from None
        except TimeoutError as error:
            message = f"no connection within {self.limits.connect_timeout_s:g} s"
            raise _Missed(FailureKind.TIMEOUT, message, status=status) from error
        except aiohttp.ClientHttpProxyError as error:
            message = self._masked(f"HTTP {error.status} of the proxy: {error.message}")[: wire.MAX_MESSAGE]
            raise _Missed(
                FailureKind.HTTP_ERROR,
                message,
                status=error.status,
                retryable=retry.worth_retrying(error.status, message),
            ) from error
        except aiohttp.ClientResponseError as error:
            message = self._masked(f"no HTTP answer: {error.message}")[: wire.MAX_MESSAGE]
            raise _Missed(FailureKind.INVALID_RESPONSE, message, status=status) from error
        except (aiohttp.ClientError, OSError) as error:
            if isinstance(error, aiohttp.ClientConnectorError) and error.port:
                self.door.refused(error.host, error.port)
            raise _Missed(FailureKind.DISCONNECTED, self._explain(error), status=status) from error
        except ValueError as error:  # a host name or a header that cannot be sent
            raise _Missed(FailureKind.DISCONNECTED, self._explain(error), retryable=False) from error
        if self._connector.repeats(wait, answer.said):
            message = "the connection gave the answer to an earlier request once more"
            raise _Missed(FailureKind.INVALID_RESPONSE, message, status=status)
        return answer

    async def _read_answer(self, reply: aiohttp.ClientResponse, wait: Wait) -> _Answer:
        """What a reply says. Raises _Missed when that is no answer, and what the connection raises."""
        status = reply.status
        if 300 <= status < 400:
            raise _Missed(FailureKind.HTTP_ERROR, "a redirect, which is not followed", status=status, retryable=False)
        if status >= 400:
            message = wire.describe(await self._read(reply, wait))
            raise _Missed(
                FailureKind.HTTP_ERROR,
                f"HTTP {status}: {message}",
                status=status,
                retryable=retry.worth_retrying(status, message),
                retry_after=reply.headers.get("Retry-After"),
            )
        content_type = reply.headers.get("Content-Type", "")
        try:
            if content_type[: len(wire.EVENT_STREAM)].lower() == wire.EVENT_STREAM:
                return await self._read_stream(reply, wait)
            return _Answer(status, wire.decode(await self._read(reply, wait), content_type))
        except wire.InvalidResponse as error:
            raise _Missed(
                FailureKind.INVALID_RESPONSE,
                self._masked(str(error)),
                status=status,
                lost_stream=isinstance(error, wire.LostStream),
            ) from error

    async def _read(self, reply: aiohttp.ClientResponse, wait: Wait | None = None) -> bytes:
        """The whole body, masked, at most `max_response_bytes` of it."""
        content = reply.content
        body = await content.readany()
        if not content.at_eof():
            pieces, size = [body], len(body)
            if wait is not None:
                wait.heard_at = time.monotonic()
            while piece := await content.readany():
                if wait is not None:
                    wait.heard_at = time.monotonic()
                pieces.append(piece)
                size += len(piece)
                self._check_size(reply, size)
            body = b"".join(pieces)
        self._check_size(reply, len(body))
        return self._mask(body, shortest=8 if reply.ok else 1)

    async def _read_stream(self, reply: aiohttp.ClientResponse, wait: Wait) -> _Answer:
        """The answer of an event stream, read as it comes. Once there is a finish_reason, the way in which the stream
        ends is not the answer's fault."""
        answer, size, clock = StreamedAnswer(), 0, time.monotonic
        try:
            while not answer.done:
                if answer.complete:
                    async with asyncio.timeout(AFTER_FINISH_S):
                        piece = await reply.content.readany()
                else:
                    piece = await reply.content.readany()
                if not piece:
                    break
                wait.heard_at = clock()
                size += len(piece)
                self._check_size(reply, size)
                answer.feed(piece, wait.heard_at)
        except (aiohttp.ClientError, OSError):
            if not answer.complete:
                raise
        said, wait.heard_at = answer.said(), math.inf
        with suppress(aiohttp.ClientError, OSError):
            async with asyncio.timeout(AFTER_DONE_S):
                while not reply.content.at_eof() and (piece := await reply.content.readany()):
                    size += len(piece)
                    if size > self.limits.max_response_bytes:
                        reply.close()
        if self._secrets:
            for name in ("text", "reasoning", "refusal", "finish_reason", "stop_reason"):
                if told := getattr(said, name):
                    setattr(said, name, self._masked(told, shortest=8))
        return _Answer(reply.status, said, answer.first_at, answer.last_at)

    def _check_size(self, reply: aiohttp.ClientResponse, size: int) -> None:
        if size > self.limits.max_response_bytes:
            reply.close()
            raise _Missed(
                FailureKind.INVALID_RESPONSE,
                f"the answer is larger than {self.limits.max_response_bytes} bytes",
                status=reply.status,
            )

    def _mask(self, text: bytes, *, shortest: int) -> bytes:
        for secret in self._secrets:
            if len(secret) >= shortest and secret in text:
                text = text.replace(secret, b"***")
        return text

    def _masked(self, text: str, *, shortest: int = 1) -> str:
        if not self._secrets:
            return text
        return self._mask(text.encode("utf-8", "surrogatepass"), shortest=shortest).decode("utf-8", "surrogatepass")

    def _explain(self, error: Exception) -> str:
        """What an exception says, without what must not be shown, and not longer than a message may be."""
        cause = getattr(error, "os_error", None)
        if isinstance(error, aiohttp.ClientConnectorError) and cause is not None:
            said = f"cannot connect to {error.host}:{error.port}: {cause.strerror or cause}"
        else:
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return self._masked(said)[: wire.MAX_MESSAGE]

    async def models(self) -> list[str]:
        """The ids that /v1/models lists; empty where there is no such route (a disaggregated orchestrator).

        Raises EndpointError when nothing answers at all.
        """
        try:
            return wire.model_ids(await self._get(self.endpoint.base_url + "/models"))
        except (aiohttp.ClientError, OSError, ValueError, _Missed) as error:
            raise EndpointError(
                f"{self.endpoint.base_url} does not answer: {self._explain(error)}", hint=UNREACHABLE_HINT
            ) from error

    async def describe(self) -> dict[str, object]:
        """What the endpoint tells of itself, as far as it does: `models` that it lists, `version`."""
        told: dict[str, object] = {}
        with suppress(EndpointError):
            told["models"] = await self.models()
        with suppress(aiohttp.ClientError, OSError, ValueError, _Missed):
            version = wire.version(await self._get(self.endpoint.base_url.removesuffix("/v1") + "/version"))
            if version is not None:
                told["version"] = version
        return told

    async def _get(self, url: str) -> bytes:
        """The body of a GET; empty unless the status is 200."""
        async with self._session.get(
            url,
            proxy=self._proxy,
            proxy_auth=self._proxy_auth,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=30, sock_connect=self.limits.connect_timeout_s),
        ) as reply:
            body = await self._read(reply)
            return body if reply.status == 200 else b""


def _proxy(url: str | None) -> tuple[URL | None, aiohttp.BasicAuth | None]:
    """A proxy's address and its credentials, apart. Raises PlanError, without the address, when it is none."""
    if url is None:
        return None, None
    try:
        parsed = URL(url)
    except ValueError:
        parsed = URL()
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise PlanError("proxy: expected http://host:port or https://host:port")
    auth = aiohttp.BasicAuth(parsed.user or "", parsed.password or "") if parsed.user or parsed.password else None
    return parsed.with_user(None), auth


def _ssl_context(ca_bundle: str | None) -> ssl.SSLContext | bool:
    if ca_bundle is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except (OSError, ssl.SSLError) as error:
        raise PlanError(f"ca_bundle: {ca_bundle} cannot be used: {error}") from error
