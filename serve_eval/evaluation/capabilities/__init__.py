"""Probe, with a few tiny requests, if an endpoint can do what the tasks need.

This comes before anything else is sent. A server often ignores a field that it does not know,
without an error, and a task would then be scored at chance level. So a probe checks the response,
not only the status. An ability that the endpoint lacks gives a separate outcome.
"""

from __future__ import annotations

from serve_eval.evaluation.capabilities.features import (
    LIKELIEST,
    PREFIX,
    SEEN_BLANK,
    TEXT,
    end_of_blanks,
    find_misplaced,
    first_token,
    is_blank_json,
    is_one_token,
    prompt_logprobs,
    warn_of_guided_decoding,
)
from serve_eval.evaluation.capabilities.probe import probe, reason
from serve_eval.evaluation.capabilities.probe_request import CONTEXT, WORD, read_context

__all__ = [
    "CONTEXT",
    "LIKELIEST",
    "PREFIX",
    "SEEN_BLANK",
    "TEXT",
    "WORD",
    "end_of_blanks",
    "find_misplaced",
    "first_token",
    "is_blank_json",
    "is_one_token",
    "probe",
    "prompt_logprobs",
    "read_context",
    "reason",
    "warn_of_guided_decoding",
]
