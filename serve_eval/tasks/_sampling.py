"""Options of the request that several tasks offer, in one place."""

from __future__ import annotations

from serve_eval.errors import PlanError
from serve_eval.schema import SamplingParams


def sampling_params(
    *, max_tokens: int, temperature: float | None, top_p: float | None, stop: tuple[str, ...]
) -> SamplingParams:
    """The sampling of a task; a temperature or top_p of None is left out, for servers that refuse the field.

    Raises PlanError for values that no server can mean.
    """
    if max_tokens < 1 or (temperature or 0.0) < 0.0 or not 0.0 < (1.0 if top_p is None else top_p) <= 1.0:
        raise PlanError("max_tokens must be 1 or more, temperature 0 or more, top_p above 0 and at most 1")
    return SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop=stop)


def extra_fields(truncate_prompt_tokens: int | None) -> dict[str, object]:
    """Fields of the request beyond OpenAI's. None leaves the truncation out, for servers that refuse the field."""
    return {} if truncate_prompt_tokens is None else {"truncate_prompt_tokens": truncate_prompt_tokens}


def request_protocol(sampling: SamplingParams, truncate_prompt_tokens: int | None) -> dict[str, object]:
    """The part of a task's protocol that the request carries."""
    return {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "stop": list(sampling.stop),
        "truncate_prompt_tokens": truncate_prompt_tokens,
    }
