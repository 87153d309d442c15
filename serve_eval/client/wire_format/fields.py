"""Read single fields of an answer. A missing or invalid one is not an error. Pure."""

from __future__ import annotations

from typing import Any

from serve_eval.client.wire_format.bodies import WireUsage
from serve_eval.schema import Usage

_NAMES = {
    "prompt_tokens": ("prompt_tokens", "input_tokens", "promptTokenCount"),
    "completion_tokens": ("completion_tokens", "output_tokens", "candidatesTokenCount"),
    "prompt_tokens_details": ("prompt_tokens_details", "input_tokens_details"),
    "completion_tokens_details": ("completion_tokens_details", "output_tokens_details"),
    "reasoning_tokens": ("reasoning_tokens", "thoughtsTokenCount"),
}
_USAGES = ("usage", "usageMetadata", "usage_metadata")
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
    if not told:  # nearly always; the types below take longer
        return None
    return float(told) if isinstance(told, int | float) and 0 < told < 2**53 else None


def usage(told: object) -> Usage:
    """Return the token counts. Missing or invalid ones are 0."""
    if type(told) is WireUsage:
        return _read_usage(told)
    return _read_usage(_name_counts(told)) if isinstance(told, dict) else NO_USAGE


def _read_usage(told: WireUsage) -> Usage:
    prompt, completion = told.prompt_tokens, told.completion_tokens
    if not (type(prompt) is int and type(completion) is int and prompt >= 0 and completion >= 0):
        prompt, completion = _count(prompt), _count(completion)
    details, thoughts = told.prompt_tokens_details, told.completion_tokens_details
    hidden, cached = told.reasoning_tokens, None
    if isinstance(details, dict):
        cached = details.get("cached_tokens")
        if type(cached) is not int or not 0 <= cached < 2**53:
            cached = None
    if isinstance(thoughts, dict):
        hidden = thoughts.get("reasoning_tokens") or hidden
    if hidden:
        return Usage(
            prompt_tokens=prompt,
            completion_tokens=completion,
            cached_tokens=cached,
            reasoning_tokens=_count(hidden),
        )
    return Usage(prompt_tokens=prompt, completion_tokens=completion, cached_tokens=cached)


def find_usage(told: object) -> WireUsage | None:
    """Return the token counts of a body, wherever servers put them, or None.

    Moonshot's are in the first choice, Groq's in `x_groq`; llama.cpp also counts in `timings`.
    """
    if not isinstance(told, dict):
        return None
    choices = told.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    inner = [first.get("message"), first.get("delta")] if isinstance(first, dict) else []
    for one in (told, first, told.get("x_groq"), *inner):
        if isinstance(one, dict):
            for name in _USAGES:
                if one.get(name) and isinstance(one[name], dict):
                    return _name_counts(one[name])
    return _read_timings(told.get("timings"))


def _read_timings(told: object) -> WireUsage | None:
    """Return the counts in llama.cpp's `timings`, whose `prompt_n` leaves out cached tokens."""
    if not isinstance(told, dict) or type(told.get("predicted_n")) is not int:
        return None
    return WireUsage(
        prompt_tokens=_count(told.get("prompt_n")) + _count(told.get("cache_n")),
        completion_tokens=told["predicted_n"],
    )


def _name_counts(told: dict[str, Any]) -> WireUsage:
    """Return counts by OpenAI's names, from those of Responses, Anthropic and Gemini too."""
    found = {
        name: next((told[one] for one in names if told.get(one) is not None), None)
        for name, names in _NAMES.items()
    }
    return WireUsage(**found)


def _count(value: object) -> int:
    return int(value) if isinstance(value, int | float) and 0 <= value < 2**53 else 0
