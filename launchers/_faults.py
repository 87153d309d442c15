"""The ways in which the simulated endpoint fails on demand, apart from its server, which is slow to import."""

from __future__ import annotations

from typing import Literal

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
"""How a request fails: a status in one of trtllm-serve's forms, no answer, or a 200 that holds none.

500: `{"detail": ...}` of an orchestrator. 429: with `Retry-After: 0`. 503: plain text. disconnect: the connection is
closed. html: a proxy's page. empty_choices, null_content, bad_json (cut in the middle): an answer without a text. hang:
nothing until the client goes. wrapped_400: a worker's refusal as an orchestrator's 500. stream_without_finish: an event
stream, asked for or not, that never says why it ends.
"""
