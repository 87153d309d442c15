"""One HTTP session to one endpoint. `send` never raises for what a request met: it returns a Response or a Failure."""

from __future__ import annotations

import asyncio
import random
import secrets
import ssl
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from types import TracebackType
from typing import Self

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from serve_eval.client import retry, wire
from serve_eval.errors import EndpointError, PlanError
from serve_eval.schema import Attempt, Endpoint, Failure, FailureKind, Limits, Request, Response

KEEPALIVE_S = 3.0
"""Below the 5 s after which trtllm-serve closes an idle connection: a POST on a closing connection is lost."""

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
    ) -> None:
        super().__init__(message)
        self.kind, self.status, self.retryable, self.retry_after = kind, status, retryable, retry_after


class Client:
    """Sends requests to `endpoint` within `limits`.

    `api_key`, `headers` and `proxy` (already expanded) are held in memory only; a header Authorization comes before the
    key. The key, the proxy's password and the `masked` strings are replaced by *** in what is received, so that a
    server that echoes them cannot bring them into a file: in error messages always, in answers from 8 characters on,
    since a shorter one may be a plain word of the answer.
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
    ) -> None:
        self.endpoint, self.limits = endpoint, limits
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
        self._opened_at = time.monotonic()
        self._prefix, self._sent = secrets.token_hex(4), 0

    async def __aenter__(self) -> Self:
        limits = self.limits
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=KEEPALIVE_S, ssl=self._ssl),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=limits.connect_timeout_s, sock_read=limits.stall_timeout_s
            ),
            headers=self._headers,
            cookie_jar=aiohttp.DummyCookieJar(),
            trust_env=False,
        )
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def send(self, request: Request) -> Response | Failure:
        """The answer to a request, after at most `max_attempts` attempts, or why there is none.

        Attempts, pauses included, are bounded by `sample_timeout_s`. What would fail the same way is not tried again.
        """
        attempts: list[Attempt] = []
        given_up = f"the sample's {self.limits.sample_timeout_s:g} s"
        missed: _Missed | None = None
        try:
            async with asyncio.timeout(self.limits.sample_timeout_s):
                body = wire.encode(request, self.endpoint.model or "")
                while True:
                    try:
                        return await self._attempt(request, body, attempts)
                    except _Missed as error:
                        missed = error
                    if not missed.retryable or len(attempts) >= self.limits.max_attempts:
                        break
                    await asyncio.sleep(retry.pause_s(len(attempts), missed.retry_after, self._rng))
        except TimeoutError:
            if missed is None:
                missed = _Missed(FailureKind.TIMEOUT, f"no answer within {given_up}")
            else:
                missed = _Missed(missed.kind, f"{missed} (gave up after {given_up})", status=missed.status)
        return Failure(
            kind=missed.kind,
            message=str(missed),
            status=missed.status,
            retryable=missed.retryable,
            attempts=tuple(attempts),
        )

    async def _attempt(self, request: Request, body: bytes, attempts: list[Attempt]) -> Response:
        self._sent += 1
        request_id = f"{self._prefix}-{self._sent}"
        start = time.monotonic()
        missed: _Missed | None = None
        status: int | None = None
        try:
            status, answer = await self._exchange(request, body, request_id)
        except _Missed as error:
            missed, status = error, error.status
            raise
        finally:
            end = time.monotonic()
            attempts.append(
                Attempt(
                    start_s=round(start - self._opened_at, 6),
                    end_s=round(end - self._opened_at, 6),
                    failure=missed.kind if missed else (None if status else FailureKind.TIMEOUT),
                    status=status,
                    request_id=request_id,
                )
            )
        return replace(answer, latency_s=round(end - start, 6), attempts=tuple(attempts))

    async def _exchange(self, request: Request, body: bytes, request_id: str) -> tuple[int, Response]:
        url = self._urls[wire.route(request.prompt)]
        try:
            async with self._session.post(
                url,
                data=body,
                headers={"X-Request-ID": request_id},
                proxy=self._proxy,
                proxy_auth=self._proxy_auth,
                allow_redirects=False,
            ) as reply:
                received = await self._read(reply)
                content_type = reply.headers.get("Content-Type", "")
                status, retry_after = reply.status, reply.headers.get("Retry-After")
        except TimeoutError as error:
            raise _Missed(FailureKind.TIMEOUT, _timeout_message(error, self.limits)) from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Missed(FailureKind.DISCONNECTED, self._explain(error)) from error
        except ValueError as error:  # a host name or a header that cannot be sent
            raise _Missed(FailureKind.DISCONNECTED, self._explain(error), retryable=False) from error
        if 300 <= status < 400:
            raise _Missed(FailureKind.HTTP_ERROR, "a redirect, which is not followed", status=status, retryable=False)
        if status >= 400:
            message = wire.describe(received)
            raise _Missed(
                FailureKind.HTTP_ERROR,
                f"HTTP {status}: {message}",
                status=status,
                retryable=retry.worth_retrying(status, message),
                retry_after=retry_after,
            )
        try:
            return status, wire.decode(received, content_type, request.sampling.stop)
        except wire.InvalidResponse as error:
            raise _Missed(FailureKind.INVALID_RESPONSE, str(error), status=status) from error

    async def _read(self, reply: aiohttp.ClientResponse) -> bytes:
        """The whole body, masked, at most `max_response_bytes` of it."""
        pieces, size = [], 0
        while piece := await reply.content.readany():
            pieces.append(piece)
            size += len(piece)
            if size > self.limits.max_response_bytes:
                reply.close()
                raise _Missed(
                    FailureKind.INVALID_RESPONSE,
                    f"the answer is larger than {self.limits.max_response_bytes} bytes",
                    status=reply.status,
                )
        return self._mask(pieces[0] if len(pieces) == 1 else b"".join(pieces), shortest=8 if reply.ok else 1)

    def _mask(self, text: bytes, *, shortest: int) -> bytes:
        for secret in self._secrets:
            if len(secret) >= shortest and secret in text:
                text = text.replace(secret, b"***")
        return text

    def _explain(self, error: Exception) -> str:
        """What an exception says, without what must not be shown."""
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        return self._mask(said.encode("utf-8", "replace"), shortest=1).decode("utf-8", "replace")

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


def _timeout_message(error: Exception, limits: Limits) -> str:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"no connection within {limits.connect_timeout_s:g} s"
    return f"no byte for {limits.stall_timeout_s:g} s"


def _ssl_context(ca_bundle: str | None) -> ssl.SSLContext | bool:
    if ca_bundle is None:
        return True
    try:
        return ssl.create_default_context(cafile=ca_bundle)
    except (OSError, ssl.SSLError) as error:
        raise PlanError(f"ca_bundle: {ca_bundle} cannot be used: {error}") from error
