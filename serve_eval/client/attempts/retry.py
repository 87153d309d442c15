"""Decide which failures to retry, and when. Pure."""

from __future__ import annotations

import random
import re
from datetime import UTC, datetime

from serve_eval.client.wire_format.rate_limits import read_retry_after

BASE_S = 0.5
CAP_S = 30.0
RETRY_AFTER_CAP_S = 120.0

_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_REFUSALS = frozenset({401, 402, 403, 404, 405, 411, 413, 414, 415, 421, 422, 426, 429, 431})
_WRAPPED_REFUSAL = re.compile(r"\b(400|401|403|404|422), message=|message='Bad Request'")


def worth_retrying(status: int, message: str) -> bool:
    """Return True if an error status may be temporary.

    A disaggregated orchestrator of trtllm-serve passes a worker's refusal, such as a 400, on as a
    500 that quotes it. Such a 500 is not retried.
    """
    return status in _STATUSES and not (status == 500 and is_refused_behind(message))


def is_refused_behind(message: str) -> bool:
    """Return True if the message of a 500 quotes the refusal of a worker."""
    return _WRAPPED_REFUSAL.search(message) is not None


def is_refused_early(status: int, retry_after: str | None) -> bool:
    """Return True if a status refuses a request before anything is generated for it.

    429, a 503 with a Retry-After, and what concerns the form of a request, the key or the route. A
    400 does not: trtllm-serve also answers it if its engine fails while it generates.
    """
    return status in _REFUSALS or (status == 503 and retry_after is not None)


def pause_s(
    attempt: int, retry_after: str | None, rng: random.Random, now: datetime | None = None
) -> float:
    """Return the seconds to wait after the `attempt`-th failure (1, 2, ...).

    The pause grows exponentially, with full jitter (Brooker 2015, "Exponential Backoff And
    Jitter"). A Retry-After, in seconds or as an HTTP date, is honoured up to RETRY_AFTER_CAP_S, and
    the jitter is added to it.
    """
    jitter = rng.uniform(0.0, min(CAP_S, BASE_S * 2 ** (attempt - 1)))
    told = read_retry_after(retry_after, now or datetime.now(UTC))
    return jitter if told is None else min(told, RETRY_AFTER_CAP_S) + jitter
