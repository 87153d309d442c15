"""Sampling options that several tasks offer, checked in one place."""

from __future__ import annotations

from serve_eval.errors import PlanError
from serve_eval.schema import SamplingParams


def sampling_params(*, max_tokens: int, temperature: float, top_p: float, stop: tuple[str, ...]) -> SamplingParams:
    """The sampling of a task. Raises PlanError for values that no server can mean."""
    if max_tokens < 1 or temperature < 0.0 or not 0.0 < top_p <= 1.0:
        raise PlanError("max_tokens must be 1 or more, temperature 0 or more, top_p above 0 and at most 1")
    return SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, stop=stop)
