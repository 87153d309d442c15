"""Find out, by a handful of tiny requests, if the endpoint can do what the tasks need, before
anything else is sent.

A server that does not know a field often ignores it in silence, and a task would then be scored at
chance level. So a probe looks at what came back, not only at the status. What an endpoint cannot do
is an outcome of its own.
"""

from __future__ import annotations

from serve_eval.evaluation.capabilities.context_length import CONTEXT
from serve_eval.evaluation.capabilities.features import WORD
from serve_eval.evaluation.capabilities.logprobs import (
    LIKELIEST,
    PREFIX,
    TEXT,
    find_misplaced,
    first_token,
    is_one_token,
    prompt_logprobs,
)
from serve_eval.evaluation.capabilities.probe import probe, reason

__all__ = [
    "CONTEXT",
    "LIKELIEST",
    "PREFIX",
    "TEXT",
    "WORD",
    "find_misplaced",
    "first_token",
    "is_one_token",
    "probe",
    "prompt_logprobs",
    "reason",
]
