"""Check whether a result can be judged, before any verdict rule runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serve_eval.schema import Outcome, TaskResult
from serve_eval.shell_words import quote_word
from serve_eval.verdicts import cut_answers

CHOSEN_SAMPLES = "chosen_samples"
"""The name with which the warning about samples that a user named begins."""
MAX_MISSING = 0.02
"""Largest share of the planned samples that may lack an answer for a result to be judged."""


def objections(result: TaskResult, max_missing: float = MAX_MISSING) -> list[str]:
    """Return why `result` must not be judged; empty if it may be.

    Each reason starts with its machine-readable name.
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


def remarks(result: TaskResult, *, max_tokens: int, stop: Sequence[str] = ()) -> list[str]:
    """Return warnings that do not prevent a verdict."""
    if result.scored == 0:
        return []
    warnings = [*cut_answers.advise(result, max_tokens=max_tokens, stop=tuple(stop))]
    if result.stopped_in_reasoning:
        cause = (
            "find out what ended them; the server's reasoning parser may take answers for thoughts"
        )
        if stop:
            cause = (
                f"check whether the stop strings {', '.join(map(repr, stop))} also end the"
                f" reasoning; --set {result.task}.stop=[] removes them"
            )
        warnings.append(
            f"{result.stopped_in_reasoning} of {result.scored} answers ended within the model's"
            f" reasoning before max_tokens: {cause}"
        )
    thinking = result.outcomes.get(Outcome.REASONING_ONLY, 0) - result.stopped_in_reasoning
    if thinking > 0:
        warnings.append(
            f"{thinking} of {result.scored} answers contain only reasoning and score 0: raise"
            " max_tokens, or switch thinking off"
        )
    warnings.extend(_describe_endings(result))
    if result.unparsed / result.scored > 0.05:
        warnings.append(
            f"no result could be extracted from {result.unparsed} of {result.scored} answers"
        )
    return warnings


def _describe_endings(result: TaskResult) -> Iterator[str]:
    """Yield what the finish reasons say of answers that are scored and may not be whole."""
    if result.looping:
        yield (
            f"{result.looping} of {result.scored} answers repeat themselves until the server ended"
            " them (finish_reason repetition): they are scored as they are"
        )
    if result.unlisted_finishes:
        named = ", ".join(f"{name!r} {count}" for name, count in result.unlisted_finishes.items())
        first = quote_word(next(iter(result.unlisted_finishes)))
        yield (
            f"{sum(result.unlisted_finishes.values())} of {result.scored} answers end with a"
            f" finish_reason of no known server ({named}) and may have been cut: if it ends a whole"
            f" answer, add --set limits.known_finish_reasons={first}"
        )
