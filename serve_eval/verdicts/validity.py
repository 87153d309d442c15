"""May a result be judged at all? Reasons why not, before any verdict rule is asked."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.schema import Outcome, TaskResult

MAX_MISSING = 0.02
"""Share of the planned samples that may end without an answer before a result is not judged."""


def objections(result: TaskResult, max_missing: float = MAX_MISSING) -> list[str]:
    """Why `result` must not be judged; empty when it may be. Each reason starts with its
    machine-readable name.
    """
    if result.scored == 0:
        return [f"nothing_scored: none of {result.planned} samples has an answer"]
    share = result.failed / result.planned
    if share > max_missing:
        return [
            f"too_many_missing: {result.failed} of {result.planned} samples ({share:.1%}) have no"
            f" answer; at most {max_missing:.0%} may be missing"
        ]
    if result.failed and result.bounds is None:
        return [f"missing_results: {result.failed} answers are missing and the value has no bounds"]
    return []


def remarks(result: TaskResult, *, one_token_answers: bool, stop: Sequence[str] = ()) -> list[str]:
    """Warnings that do not forbid a verdict. A cut answer is expected where the task asks for a
    token or two.
    """
    if result.scored == 0:
        return []
    warnings = []
    if not one_token_answers and result.truncated / result.scored > 0.01:
        warnings.append(
            f"{result.truncated} of {result.scored} answers were cut at max_tokens: raise"
            " max_tokens or compare only with a reference that was taken under the same limit"
        )
    if result.stopped_in_reasoning:
        cause = "see what ended them"
        if stop:
            cause = (
                f"do the stop strings {', '.join(map(repr, stop))} end thoughts too? --set"
                f" {result.task}.stop=[]"
            )
        warnings.append(
            f"{result.stopped_in_reasoning} of {result.scored} answers ended within the model's"
            f" reasoning, without having been cut at max_tokens: {cause}"
        )
    thinking = result.outcomes.get(Outcome.REASONING_ONLY, 0) - result.stopped_in_reasoning
    if thinking > 0:
        warnings.append(
            f"{thinking} of {result.scored} answers never left the model's reasoning and score"
            " nothing: raise max_tokens, or switch thinking off"
        )
    if result.unparsed / result.scored > 0.05:
        warnings.append(
            f"nothing could be extracted from {result.unparsed} of {result.scored} answers"
        )
    return warnings
