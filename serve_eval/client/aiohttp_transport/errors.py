"""Translate errors of aiohttp into those of the client."""

from __future__ import annotations

import aiohttp
from aiohttp.http_exceptions import ContentLengthError, TransferEncodingError

from serve_eval.client.server_address import ServerAddress
from serve_eval.client.tls import refusal
from serve_eval.client.transport import (
    BadHttp,
    CannotConnect,
    CertificateRefused,
    Disconnected,
    ProxyRefused,
)


def not_sent(error: Exception, address: ServerAddress, *, through_proxy: bool) -> Exception:
    """Return the error of a request for which no connection could be made."""
    match error:
        case TimeoutError():
            return TimeoutError()
        case aiohttp.ClientHttpProxyError():
            return ProxyRefused(error.status)
        case aiohttp.ClientConnectorCertificateError():
            return CannotConnect(address, error.certificate_error)
        case aiohttp.ClientConnectorError():
            return CannotConnect(address, error.os_error)
        case aiohttp.ClientResponseError() if through_proxy:
            return BadHttp("no HTTP answer from the proxy")
        case aiohttp.ClientConnectionError() if through_proxy:
            return Disconnected("the proxy closed the connection")
        case ValueError():  # aiohttp.InvalidURL and UnicodeError
            return CannotConnect(address, error, may_pass=False)
        case _:
            return CannotConnect(address, error)


def broken(error: Exception, *, within: bool) -> Exception:
    """Return the error of a request that was sent. `within`: the head of an answer had come."""
    if isinstance(error, aiohttp.ClientConnectionError | OSError) or (
        isinstance(error, aiohttp.ClientPayloadError)
        and isinstance(error.__cause__, ContentLengthError | TransferEncodingError | OSError)
    ):
        causes = (error, error.__cause__, getattr(error, "os_error", None), error.__context__)
        if told := next(filter(None, map(refusal, causes)), ""):
            return CertificateRefused(told)
        when = "within the answer" if within else "before an answer came"
        return Disconnected(f"the connection ended {when} ({type(error).__name__}: {error})")
    return BadHttp(f"no HTTP answer: {error}")
