"""Build the headers that every request of a session carries."""

from __future__ import annotations

import re
from collections.abc import Mapping

import serve_eval
from serve_eval.client.transport import REQUEST_ID
from serve_eval.errors import PlanError

_TOKEN = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")  # RFC 9110, section 5.6.2
_OWN = {"content-length", "transfer-encoding", REQUEST_ID.lower()}


def request_headers(api_key: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """Return the default headers, replaced or extended by those `given`.

    Raises PlanError for a header that cannot be sent.
    """
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
            raise PlanError(
                f"header {name!r}: its name or value has a character that cannot be sent in a"
                " header"
            )
    replaced = {name.lower() for name in given}
    return {
        **{name: value for name, value in headers.items() if name.lower() not in replaced},
        **{name: value for name, value in given.items() if name.lower() not in _OWN},
    }


def holds_key(headers: Mapping[str, str]) -> bool:
    """Return True if a header looks like a key."""
    return any(name.lower() == "authorization" or "key" in name.lower() for name in headers)
