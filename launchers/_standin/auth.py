"""The key that an orchestrator of main shares with its workers to sign KV cache transfers."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import sys
from collections.abc import Mapping
from functools import cache
from typing import Any

KEY = "internal_request_auth_key"
HEADER = "x-trtllm-disagg-auth"
ENFORCED = "STANDIN_AUTH_ENFORCED"
"""If 1, a request without a key is an error, as in some states of main; else a warning."""
_SIGNED = ("ctx_info_endpoint", "encoded_opaque_state")
_MISSING = (
    "Internal disaggregated authentication key is required for protected disaggregated request"
    f" fields. In a future release the requirement to use {KEY} will be enforced."
)
_REQUIRED = "Internal disaggregated authentication key is required"


def headers(key: str | None, params: Mapping[str, Any]) -> dict[str, str]:
    """Return the headers that an orchestrator adds.

    Raises ValueError if a required key is missing.
    """
    return {HEADER: _signature(key, params)} if _must_sign(params) and _is_set(key) and key else {}


def check(key: str | None, params: Mapping[str, Any] | None, sent: Mapping[str, str]) -> None:
    """Raise ValueError for a request that is not signed with the key of this worker."""
    if params is None or not _must_sign(params) or not _is_set(key) or not key:
        return
    if not hmac.compare_digest(sent.get(HEADER, ""), _signature(key, params)):
        raise ValueError("Invalid internal disaggregated request authentication")


def _must_sign(params: Mapping[str, Any]) -> bool:
    return any(params.get(name) is not None for name in _SIGNED)


def _is_set(key: str | None) -> bool:
    if not key and os.environ.get(ENFORCED) == "1":
        raise ValueError(_REQUIRED)
    if not key:
        _warn()
    return bool(key)


@cache
def _warn() -> None:
    """Warn once in a process, as Python does.

    An exception, where tests turn warnings into errors, would not be imitated.
    """
    sys.stderr.write(f"disagg_auth.py: FutureWarning: {_MISSING}\n")


def _signature(key: str, params: Mapping[str, Any]) -> str:
    signed = {name: params.get(name) for name in _SIGNED}
    for name, value in signed.items():  # of several addresses, the first is signed
        signed[name] = next(iter(value), None) if isinstance(value, list) else value
    payload = json.dumps(signed, sort_keys=True, separators=(",", ":"))
    return "sha256=" + hmac.new(key.encode(), payload.encode(), hashlib.sha256).hexdigest()
