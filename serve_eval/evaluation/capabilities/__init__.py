"""Probe, with a few tiny requests, if an endpoint can do what the tasks need.

This comes before anything else is sent. A server often ignores a field that it does not know,
without an error, and a task would then be scored at chance level. So a probe checks the response,
not only the status. An ability that the endpoint lacks gives a separate outcome.
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
