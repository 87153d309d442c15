"""The ways in which the simulated endpoint fails on demand, apart from its server, which is slow to
import.
"""

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
"""How a request fails: a status in one of trtllm-serve's forms, no answer, or a 200 that holds
none.

500: `{"detail": ...}` of an orchestrator. 429: with `Retry-After: 0`. 503: plain text. disconnect:
the connection is closed. html: a proxy's page. empty_choices, null_content, bad_json (cut in the
middle): an answer without a text. hang: nothing until the client goes. wrapped_400: a worker's
refusal as an orchestrator's 500. stream_without_finish: an event stream, asked for or not, that
never says why it ends. """

SHARES = ("damage", "failure_rate", "truncate_rate", "empty_rate")
COUNTS = ("latency_s", "latency_jitter_s", "failures_per_prompt", "crash_after", "context_tokens")


def out_of_range(options: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return what is out of range among the simulator's options: (name, message)."""
    for name in SHARES:
        if name in options and not 0.0 <= options[name] <= 1.0:
            yield name, f"is {options[name]}, which is not between 0 and 1"
    for name in COUNTS:
        if (options.get(name) or 0) < 0:
            yield name, f"is {options[name]}, which is negative"
