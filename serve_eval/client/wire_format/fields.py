"""Read single fields of an answer. A missing or invalid one is not an error. Pure."""

from __future__ import annotations

from serve_eval.schema import Usage

NO_USAGE = Usage()
MAX_FINGERPRINT = 100
"""Characters kept of a system_fingerprint."""


def answer_id(told: object) -> str | None:
    """Return the id of an answer or a chunk."""
    return told if isinstance(told, str) and told else None


def fingerprint(told: object) -> str | None:
    """Return the beginning of a system_fingerprint, or None if the server gives none."""
    return told[:MAX_FINGERPRINT] if isinstance(told, str) and told else None


def stop_string(reason: object) -> str | None:
    """Return the stop string that ended an answer. Token ids are ignored."""
    return reason if isinstance(reason, str) else None


def tokens_per_step(told: object) -> float | None:
    """Return the tokens per step of the engine, or None if the server does not report them."""
    return float(told) if isinstance(told, int | float) and 0 < told < 2**53 else None


def usage(told: object) -> Usage:
    """Return the token counts. Missing or invalid ones are 0."""
    if not isinstance(told, dict):
        return NO_USAGE
    prompt, completion = told.get("prompt_tokens"), told.get("completion_tokens")
    details = told.get("prompt_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    if type(cached) is not int or not 0 <= cached < 2**53:
        cached = None
    if type(prompt) is int and type(completion) is int and prompt >= 0 and completion >= 0:
        return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)
    return Usage(
        prompt_tokens=_count(prompt), completion_tokens=_count(completion), cached_tokens=cached
    )


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0
