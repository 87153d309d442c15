"""Kinds of failure of the simulated endpoint, apart from its server, which is slow to import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

Refusal = Literal["500", "429", "503", "html", "wrapped_400"]
BadAnswer = Literal["empty_choices", "null_content", "bad_json"]
Fault = Literal[
    "500",
    "429",
    "503",
    "disconnect",
    "html",
    "empty_choices",
    "null_content",
    "bad_json",
    "hang",
    "wrapped_400",
    "stream_without_finish",
]
"""Kinds of failure: a status in a form of trtllm-serve, no response, or a 200 without an answer.

500: `{"detail": ...}` of an orchestrator. 429: with `Retry-After: 0`. 503: plain text. disconnect:
closes the connection. html: a proxy's page. empty_choices, null_content, bad_json (truncated): a
response without a text. hang: nothing until the client leaves. wrapped_400: a worker's refusal as
an orchestrator's 500. stream_without_finish: an event stream, requested or not, without a finish
reason."""

SHARES = ("damage", "failure_rate", "truncate_rate", "empty_rate")
COUNTS = ("latency_s", "latency_jitter_s", "failures_per_prompt", "crash_after", "context_tokens")


def out_of_range(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the simulator's options that are out of range: (name, message)."""
    for name in SHARES:
        if name in options and not 0.0 <= options[name] <= 1.0:
            yield name, f"is {options[name]}, which is not between 0 and 1"
    for name in COUNTS:
        if (options.get(name) or 0) < 0:
            yield name, f"is {options[name]}, which is negative"
