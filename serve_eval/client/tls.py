"""Decide how a server is reached: its address, TLS or not, and the certificates."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from serve_eval.errors import PlanError
from serve_eval.schema import Connection


class ServerAddress:
    """The address in `url`. Raises ValueError unless it is an http or https URL with a host."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(url)
        self.tls = parts.scheme == "https"
        self.host = parts.hostname
        self.port = parts.port or (443 if self.tls else 80)
        name = self.host if self.host.isascii() else self.host.encode("idna").decode()
        self.name = f"[{name}]" if ":" in name else name
        self.default_port = self.port == (443 if self.tls else 80)
        user, self.password = unquote(parts.username or ""), unquote(parts.password or "")
        self.basic = (
            b64encode(f"{user}:{self.password}".encode()).decode() if user or self.password else ""
        )

    @property
    def authority(self) -> str:
        """The value of the header Host."""
        return self.name if self.default_port else f"{self.name}:{self.port}"

    @property
    def credentials(self) -> dict[str, str]:
        """The header that a proxy at this address needs; empty without a user."""
        return {"Proxy-Authorization": f"Basic {self.basic}"} if self.basic else {}


def endpoint_address(base_url: str) -> ServerAddress:
    """Return the address of an endpoint. Raises PlanError, which does not quote it."""
    try:
        return ServerAddress(base_url)
    except ValueError:
        raise PlanError("base_url: expected an http or https URL with a host") from None


def proxy_address(url: str | None) -> ServerAddress | None:
    """Return the address of a proxy.

    Raises PlanError without quoting the address, which may hold a password.
    """
    try:
        return None if url is None else ServerAddress(url)
    except ValueError:
        raise PlanError("proxy: expected http://host:port or https://host:port") from None


_NAME_ONE = (
    "name it with --set connection.client_cert=FILE, and its key with --set"
    " connection.client_key=FILE"
)
_OF_CERTIFICATES = (
    *("BAD_CERTIFICATE", "UNSUPPORTED_CERTIFICATE", "CERTIFICATE_REVOKED", "CERTIFICATE_EXPIRED"),
    *("CERTIFICATE_UNKNOWN", "UNKNOWN_CA", "ACCESS_DENIED"),
)
"""Alerts about a certificate that the other side does not take (RFC 8446, section 6.2)."""


@dataclass(frozen=True, slots=True)
class Certificates:
    """Files with the certificates that we trust (None: the system's) and with the one we show.

    `password` decrypts the key of the latter; it is in memory only. `password_env` is its variable.
    """

    ca_bundle: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    password: str | None = None
    password_env: str = ""

    def __repr__(self) -> str:
        return f"Certificates({self.ca_bundle!r}, {self.client_cert!r}, {self.client_key!r})"

    def context(self) -> ssl.SSLContext:
        """Return a context with these certificates. Raises PlanError if a file cannot be used."""
        try:
            context = ssl.create_default_context(cafile=_full(self.ca_bundle))
        except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
            raise PlanError(f"ca_bundle: {self.ca_bundle} cannot be used: {error}") from error
        if self.client_cert is not None:
            self._load(context, self.client_cert)
        return context

    def _load(self, context: ssl.SSLContext, cert: str) -> None:
        # Without a function, OpenSSL asks for the password of a key on the terminal, and hangs.
        try:
            context.load_cert_chain(
                _full(cert) or "", _full(self.client_key), lambda: self.password or ""
            )
        except (OSError, ValueError) as error:
            file = cert if self.client_key is None else self.client_key
            if self.password and isinstance(error, ssl.SSLError) and _is_locked(error, cert, file):
                variable = f"in {self.password_env} " if self.password_env else ""
                raise PlanError(
                    f"client_key: the password {variable}does not open {file}",
                    hint="Export the right one, or name its variable:"
                    " connection.client_key_password_env.",
                ) from error
            raise PlanError(
                f"client_cert: {cert} cannot be used{_reason(error)}",
                hint=_advice(error, file, has_key=self.client_key is not None),
            ) from error


def certificates_of(connection: Connection, environ: Mapping[str, str]) -> Certificates:
    """Return the certificates of a connection, with the password from the environment."""
    return Certificates(
        connection.ca_bundle,
        connection.client_cert,
        connection.client_key,
        environ.get(connection.client_key_password_env or ""),
        connection.client_key_password_env or "",
    )


def ssl_context(
    target: ServerAddress, proxy: ServerAddress | None, certificates: Certificates
) -> ssl.SSLContext | None:
    """Return a context with the certificates; None if TLS is unused and nothing needs a check.

    Raises PlanError for a file that cannot be used.
    """
    named = certificates.ca_bundle is not None or certificates.client_cert is not None
    if not (target.tls or named or (proxy is not None and proxy.tls)):
        return None
    return certificates.context()


def refusal(error: BaseException | None) -> str:
    """Return what to do if a server ended the connection because of our certificate, else "".

    Servers say so by an alert of TLS; since TLS 1.3 it comes after the handshake.
    """
    said = f"{getattr(error, 'reason', '') or ''} {error}".upper().replace(" ", "_")
    if not isinstance(error, ssl.SSLError) or "ALERT" not in said:
        return ""
    if "CERTIFICATE_REQUIRED" in said:
        return f"the server demands a client certificate: {_NAME_ONE}"
    if any(alert in said for alert in _OF_CERTIFICATES):
        return (
            "the server refuses our client certificate: name one that an authority of the server"
            " signed and that is valid now, with --set connection.client_cert=FILE and --set"
            " connection.client_key=FILE"
        )
    if "HANDSHAKE_FAILURE" in said:
        return (
            f"the server ended the TLS handshake; if it demands a client certificate, {_NAME_ONE}"
        )
    return ""


def advise_unanswered(said: str, *, shows_certificate: bool) -> str:
    """Return what to do if https gave no answer, from the words of the failure; else ""."""
    told = said.lower()
    if "certificate verify failed" in told or "certificate_verify_failed" in told:
        return (
            "Name the certificate of the authority that signed the server's with --set"
            " connection.ca_bundle=FILE."
        )
    if "connection.client_cert" in said:
        return (
            "A server whose authority is not known here also takes --set connection.ca_bundle=FILE."
        )
    if "before an answer came" not in told and "handshake" not in told and "ssl" not in told:
        return ""
    shown = "another client certificate" if shows_certificate else "a client certificate"
    return (
        f"If the server demands {shown}, name one with --set connection.client_cert=FILE and"
        " --set connection.client_key=FILE."
        " If an authority of your own signed its certificate, name that with --set"
        " connection.ca_bundle=FILE."
    )


def _is_locked(error: ssl.SSLError, cert: str, key: str) -> bool:
    """Return True if the files are PEM, the key is encrypted, and it does not belong to another."""
    texts = [Path(_full(file) or "").read_bytes() for file in (cert, key)]
    mismatch = "KEY_VALUES_MISMATCH" in str(error.reason)
    return not mismatch and b"BEGIN CERTIFICATE" in texts[0] and b"ENCRYPTED" in texts[1]


def _full(path: str | None) -> str | None:
    return None if path is None else str(Path(path).expanduser())


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return ""  # OpenSSL's words, such as [SSL] PEM lib, say nothing
    said = error.strerror if isinstance(error, OSError) else str(error)
    return f": {said}" if said else ""


def _advice(error: Exception, file: str, *, has_key: bool) -> str:
    if not isinstance(error, ssl.SSLError):
        return "Name readable files with connection.client_cert and connection.client_key."
    if "KEY_VALUES_MISMATCH" in str(error.reason):
        return "The key belongs to another certificate: name its own with connection.client_key."
    other = (
        "" if has_key else " If the key is in another file, name that with connection.client_key."
    )
    return (
        f"Both must be PEM. If the key in {file} is encrypted, name the variable with its password"
        f" with connection.client_key_password_env.{other}"
    )


PROBE_S = 5.0
"""Seconds that each of the two probes may take."""


async def other_scheme(base_url: str) -> str:
    """Return advice if the server speaks the other of http and https, else an empty text.

    The text is also empty if the server cannot be reached. Checks no certificate and sends no
    secret.
    """
    parts = urlsplit(base_url)
    tls, host = parts.scheme == "https", parts.hostname or ""
    port = parts.port or (443 if tls else 80)
    if await _speaks_tls(host, port) is tls or (tls and not await _speaks_plainly(host, port)):
        return ""
    right, says = ("http", "plain HTTP, not TLS") if tls else ("https", "TLS, not plain HTTP")
    return f"The server speaks {says}: use {right}://{base_url.partition('://')[2]}"


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return await _read_first_bytes(host, port, context) is not None


async def _speaks_plainly(host: str, port: int) -> bool:
    return (await _read_first_bytes(host, port, None) or b"").startswith(b"HTTP/")


async def _read_first_bytes(host: str, port: int, context: ssl.SSLContext | None) -> bytes | None:
    """Return the first bytes of the answer to a bare request; with TLS, b"" after the handshake.

    Returns None without a connection or without data.
    """
    writer = None
    try:
        async with asyncio.timeout(PROBE_S):
            reader, writer = await asyncio.open_connection(host, port, ssl=context)
            if context is not None:
                return b""
            writer.write(
                b"GET / HTTP/1.1\r\nHost: " + host.encode("idna") + b"\r\nConnection: close\r\n\r\n"
            )
            return await reader.read(5)
    except (OSError, EOFError, TimeoutError, UnicodeError):  # ssl.SSLError is an OSError
        return None
    finally:
        if writer is not None:
            writer.transport.abort()
