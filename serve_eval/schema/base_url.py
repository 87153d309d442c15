"""Normalise base URLs in every form that users paste, and refuse unsafe ones."""

from __future__ import annotations

import re
from contextlib import suppress
from urllib.parse import quote, urlsplit, urlunsplit

from serve_eval.errors import PlanError
from serve_eval.secret_signs import in_address

_SCHEME = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]*://")
_ADVICE = (
    "put a key into the variable named by --api-key-env, or pass a header as --header 'Name:"
    " ${VARIABLE}'"
)
_WILD = {"0.0.0.0": "127.0.0.1", "::": "::1", "127.1": "127.0.0.1"}  # noqa: S104 - none is bound
_ROUTES = ("/chat/completions", "/completions")

_ADDRESS = re.compile(r"[a-z]+://\S+|[^\s/]+:\d{1,5}(?:/\S*)?", re.IGNORECASE)
"""The form of a server's name that can be asked."""


def find_address(name: str) -> str | None:
    """Return the base URL in a name, or None: a router may also send a name like decode-1."""
    with suppress(PlanError):
        return normalise_base_url(name) if _ADDRESS.fullmatch(name) else None
    return None


def normalise_base_url(text: str) -> str:
    """Return the URL up to and including `/v1`, to which `/completions` is appended.

    Accepted are `host:port`, `http://host:port`, `.../v1` and a full `.../v1/completions` or
    `.../v1/chat/completions`. A `/v1` too many is dropped. Another path is kept as it
    is, as the openai SDK does. Raises PlanError for another scheme, for credentials or a query
    (they would end up in logs: keys belong in environment variables), for what looks like a key in
    the path, for a variable, and for anything that is not a URL. No error quotes the URL.
    """
    url = text.strip()
    if "${" in url:
        raise PlanError(
            "base_url: holds a variable, and variables are not filled in here; write the address,"
            " or leave base_url out and set SERVE_EVAL_BASE_URL"
        )
    if not _SCHEME.match(url):
        url = f"http://{url}"
    try:
        parts = urlsplit(url)
        if parts.netloc.count(":") > 1 and "[" not in parts.netloc and "@" not in parts.netloc:
            raise PlanError("base_url: put an IPv6 address in brackets, as in http://[::1]:8000/v1")
        host, port = parts.hostname, parts.port
    except ValueError:  # its text may quote a password
        raise PlanError(
            "base_url: not a URL such as http://host:8000/v1; check its host and port"
        ) from None
    if parts.scheme not in ("http", "https") or not host or port == 0:
        raise PlanError("base_url: expected host:port, http://host:port or http://host:port/v1")
    _refuse_secrets(url)
    path = parts.path.rstrip("/")
    while path.endswith(("/v1/v1", *(f"{route}/v1" for route in _ROUTES))):
        path = path.removesuffix("/v1")  # added to an address that had it already
    for route in _ROUTES:
        if path.endswith(route):
            path = path.removesuffix(route)
            break
    return urlunsplit((parts.scheme, parts.netloc, path or "/v1", "", ""))


def list_servers(text: str) -> frozenset[str]:
    """Return the normalised URLs of the server that a base URL may reach.

    Two base URLs reach one server if they share one: default ports and the case of a host do not
    matter, and localhost is the loopback address of either family. Raises what
    `normalise_base_url` raises.
    """
    parts = urlsplit(normalise_base_url(text))
    host = (parts.hostname or "").removesuffix(".")
    port = parts.port or (443 if parts.scheme == "https" else 80)
    hosts = ("127.0.0.1", "::1") if host == "localhost" else (_WILD.get(host, host),)
    return frozenset(f"{parts.scheme}://{authority(one, port)}{parts.path}" for one in hosts)


def _refuse_secrets(url: str) -> None:
    """Raise PlanError for credentials, a query, a fragment, and what looks like a key."""
    parts = urlsplit(url)
    if parts.username is not None or parts.password is not None or parts.query or parts.fragment:
        raise PlanError(
            "base_url: credentials, a query and a fragment are refused, because they would end up"
            f" in logs; {_ADVICE}"
        )
    if place := in_address(url):
        raise PlanError(
            f"base_url: its {place} seems to hold a key, which is refused, because it would end up"
            f" in logs; {_ADVICE}"
        )


def authority(host: str, port: int) -> str:
    """Return host and port in the form of a URL, with an IPv6 address in brackets."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def on_the_wire(path: str) -> str:
    """Return a path as it is sent.

    Characters that a URL must not contain are percent-encoded; existing percent-encoding is kept.
    """
    return quote(path, safe="/%:@!$&'()*+,;=~")
