"""Patterns of the lines in which each command names a fault rightly."""

from __future__ import annotations

from collections.abc import Mapping

TRANSFER = r"the transfer of the KV cache between them"
AT_START = (
    r"the first token already differs in|differ from their first token|from its first token on"
)
CACHE = r"ANOTHER MODEL, PRECISION OR CACHE"
FRONT = r"not in the servers as they answer here"
OF_REQUESTS: Mapping[str, str] = {
    "compare": AT_START,
    "equal tokens": r"texts part at (always word 0|word 0 in \d+ of)",
    "verify": rf"{TRANSFER}|a fault of single requests",
    "diagnose": AT_START,
    "attribute": FRONT,
}
ONE_OF_TWO: Mapping[str, str] = {
    "compare": r"generation server generation_1: ",
    "verify": r"found in .*another model",
    "diagnose": r"generation (server )?generation_1\b",
    "attribute": r"generation server .* wrong, the others",
}
CAUSES: Mapping[str, Mapping[str, str]] = {
    "other requests' blocks for 10 %": OF_REQUESTS,
    "other requests' blocks for 1 %": OF_REQUESTS,
    "last block dropped": {"verify": TRANSFER, "attribute": FRONT},
    "KV files of other prompts for 10 %": {
        "compare": AT_START,
        "equal tokens": OF_REQUESTS["equal tokens"],
        "verify": CACHE,
        "diagnose": AT_START,
    },
    "KV files rounded to four bits": {"verify": CACHE},
    "block sizes 32 and 64": {
        "compare": AT_START,
        "equal tokens": OF_REQUESTS["equal tokens"],
        "verify": TRANSFER,
        "diagnose": AT_START,
        "attribute": r"the transfer between them, or how they fit together",
    },
    "prefill with another template": {"verify": "template|prompt tokens", "diagnose": AT_START},
    "decode prefills again": {
        "compare": r"no KV moved",
        "verify": r"no KV cache crossed the wire",
        "attribute": r"took over no KV cache",
        "path proof": r"no KV moved",
    },
    "one of two with int3": ONE_OF_TWO,
    "one of two with W8A8": {"verify": r"OTHER NUMERICS"},
    "one of two with KV fp8": {
        "compare": r"generation server generation_1: .* failed at first",
        "verify": r"KV transfer of generation_\d .* failed",
        "diagnose": r"generation (server )?generation_1\b",
        "attribute": r"generation server .* failed, the others 0",
        "path proof": r"KV transfer of generation_1 .* failed",
    },
    "decode restarted with int3": {
        "compare": r"generation_0",
        "verify": r"found in .*another model",
        "diagnose": r"generation_0 can no longer be reached",
        "attribute": r"alone\W+server .* wrong, the others",
        "load": r"changed over time|generation_0",
    },
    "prefill killed": {
        "compare": r"context_0",
        "verify": r"context",
        "attribute": r"context",
        "load": r"context_0",
    },
    "prefix cache off": {"path proof": r"prefix_cache refuted"},
    "no draft accepted": {
        "compare": r"speculation accepted nothing",
        "path proof": r"speculation refuted",
    },
}
"""For a fault, the commands that can name it, each with a pattern of its output."""
