"""Check whether a result can be judged, also if answers were cut off.

A cut answer is scored as it is, mostly as wrong, so that the value has a bound: that with all cut
answers right (Manski 1989). The cut answers of a reference bound its own value in the same way, and
a verdict from the other side. A verdict that one of the two would turn says so; it stays.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from serve_eval.schema import (
    MEAN,
    Cut,
    CutEffect,
    Dataset,
    Outcome,
    Reference,
    Task,
    TaskResult,
    Verdict,
    VerdictOutcome,
)
from serve_eval.schema.exchange import FEW_TOKENS, raise_limit
from serve_eval.shell_words import quote_word
from serve_eval.verdicts import pairing

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
    warnings = [*advise(result, max_tokens=max_tokens, stop=tuple(stop))]
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


CUT = "cut_answers"
"""The name with which the warning about a verdict begins that cut answers could turn."""
WARNED_SHARE = 0.01
"""Share of the scored answers above which cut ones are warned of, next to the value too."""
_DECIDED = VerdictOutcome.PASS, VerdictOutcome.FAIL
AT = {
    Cut.MAX_TOKENS: "at max_tokens",
    Cut.WINDOW: "by the server's window",
    Cut.STOP_STRING: "by a stop string",
}
"""Words for the causes of a cut."""

REMEDIES = {
    Cut.MAX_TOKENS: "cut at max_tokens: raise it",
    Cut.WINDOW: "cut by the server's window before max_tokens: serve the model with a longer one",
    Cut.STOP_STRING: "cut by a stop string before a result could be read: leave it out",
}
"""Advice about one answer, by the cause of its cut."""


def describe_kinds(result: TaskResult) -> str:
    """Return how many answers each cause cut off: "3 at max_tokens, 1 by a stop string"."""
    return ", ".join(f"{n} {AT[Cut(kind)]}" for kind, n in result.cut.items())


def add_effect(
    verdict: Verdict,
    result: TaskResult,
    *,
    own: Callable[[], Verdict] | None,
    reference_cut: int | None,
    reference_answers: int | None,
    theirs: Callable[[], Verdict] | None,
    reference_name: str,
) -> Verdict:
    """Return the verdict with what cut answers could change, and a warning if they could turn it.

    `own` judges with the cut answers of this run right, `theirs` with those of the reference (None:
    this says nothing). `reference_cut` counts the latter, of `reference_answers` (None: not known).
    """
    if not result.cut and not reference_cut:
        return verdict
    best = None if own is None else own()
    worst = None if theirs is None else theirs()
    effect = CutEffect(
        cut=result.cut_answers,
        value=None if best is None else best.evaluated,
        outcome=None if best is None else best.outcome,
        reference_cut=reference_cut,
        reference_answers=reference_answers,
        reference_value=None if worst is None else worst.reference,
        reference_outcome=None if worst is None else worst.outcome,
    )
    warnings = (*_turn(verdict, effect, reference_name), *verdict.warnings)
    return replace(verdict, cut=effect, warnings=warnings)


def warn_of_stopped(verdict: Verdict, result: TaskResult) -> Verdict:
    """Return the verdict of an early stop with the bound for cut answers.

    The bound does not show if they turn it, since the stop depends on the order of the answers.
    """
    if not result.cut:
        return verdict
    effect = CutEffect(cut=result.cut_answers, value=result.cut_value, outcome=None)
    warnings = verdict.warnings
    if verdict.outcome is VerdictOutcome.FAIL:
        value = (
            "" if result.cut_value is None else f", of {result.cut_value:.2f} if they were right"
        )
        told = (
            f"{CUT}: the early stop counted the {_count(effect.cut)} as they are, and the value has"
            f" a bound{value}: ask without --early-stop to see if they turn this FAIL"
        )
        warnings = (told, *warnings)
    return replace(verdict, cut=effect, warnings=warnings)


def _turn(verdict: Verdict, effect: CutEffect, reference_name: str) -> Iterator[str]:
    """Yield a warning for each side whose cut answers could turn the verdict."""
    if verdict.outcome not in _DECIDED:
        return
    told = f"{CUT}: this {verdict.outcome} could be"
    if effect.outcome not in (None, verdict.outcome):
        own = "" if effect.value is None else f" and the value {effect.value:.2f}"
        yield f"{told} {effect.outcome} if the {_count(effect.cut)} {_were(effect.cut)} right{own}"
    if effect.reference_outcome not in (None, verdict.outcome):
        cut, value = effect.reference_cut or 0, effect.reference_value
        whose = "" if value is None else f" and its value {value:.2f}"
        yield (
            f"{told} {effect.reference_outcome} if the {_count(cut)} of {reference_name}"
            f" {_were(cut)} right{whose}"
        )


def _count(n: int) -> str:
    return "1 cut answer" if n == 1 else f"{n:,} cut answers"


def _were(n: int) -> str:
    return "was" if n == 1 else "were"


def describe_bound(result: TaskResult, figure: Callable[[float], str]) -> str:
    """Return the value if the cut answers were right, or "" if that is the value as it is shown.

    If answers are missing too, it is the upper end of the bounds, with these right as well.
    """
    bound, value = result.cut_value, result.value
    if result.failed and result.cut_bounds is not None and result.bounds is not None:
        best = result.metric.higher_is_better
        bound, value = result.cut_bounds[best], result.bounds[best]
    if bound is None or value is None or figure(bound) == figure(value):
        return ""
    if result.failed and result.cut_bounds is not None:
        return (
            f"{figure(bound)} if the {_count(result.cut_answers)} and the {result.failed:,} missing"
            " were right"
        )
    return f"{figure(bound)} if the {_count(result.cut_answers)} {_were(result.cut_answers)} right"


def are_many(result: TaskResult) -> bool:
    """Return True if more answers were cut than may go without a warning."""
    return result.cut_answers > WARNED_SHARE * result.scored


def advise(result: TaskResult, *, max_tokens: int, stop: tuple[str, ...] = ()) -> Iterator[str]:
    """Yield a warning for each way in which answers were cut off, with what to do about it.

    Answers that a stop string ended within the thoughts have a warning of their own.
    """
    if not are_many(result):
        return
    of = f"of {result.scored} answers were cut"
    if n := result.cut.get(Cut.MAX_TOKENS, 0):
        yield (
            f"{n} {of} at max_tokens={max_tokens}: raise it on both sides (--max-tokens"
            f" {raise_limit(max_tokens)}, which auto takes from this run)"
        )
    if n := result.cut.get(Cut.WINDOW, 0):
        after = (
            "" if result.window_tokens is None else f" after {result.window_tokens} tokens or fewer"
        )
        yield (
            f"{n} {of} by the server's window{after}, before max_tokens={max_tokens}: serve the"
            " model with a longer one (--max_seq_len, --max-model-len or --ctx-size); more"
            " max_tokens do not help"
        )
    within = result.stopped_in_reasoning if stop else 0
    if (n := result.cut.get(Cut.STOP_STRING, 0) - within) > 0:
        shown = f" ({', '.join(map(repr, stop))})" if stop else ""
        yield (
            f"{n} {of} by a stop string{shown} before a result could be read: --set"
            f" {result.task}.stop=[] removes them"
        )


@dataclass(frozen=True, slots=True)
class CutsRight:
    """A reference as it was if the `cut` ones of its `answers` had been right, of `runs` runs.

    If it is not known which answers of later runs were cut, `reference` is None, and `cut` and
    `answers` are those of the first run.
    """

    reference: Reference | None
    cut: int
    answers: int
    runs: int


def with_cuts_right(task: Task, dataset: Dataset, reference: Reference) -> CutsRight | None:
    """Return the reference as it was if no answer of its runs had been cut off.

    None without signs of its answers. None as well if answers can be partly right, or if the task
    wants a token or two.
    """
    if task.aggregation is not MEAN or task.sampling.max_tokens <= FEW_TOKENS:
        return None
    found = pairing.read_stored_runs(dataset, reference)
    answers = pairing.read_stored_answers(dataset, reference)
    if found is None or answers is None:
        return None
    runs, lo, hi = found
    if any(score not in (lo, hi) for run in runs for score in run):
        return None
    if (cuts := answers.list_cuts(len(runs))) is None:
        return CutsRight(None, sum(answers.cut), len(answers.cut), len(runs))
    best = hi if pairing.is_higher_better(task.metric, reference) else lo
    before, after = (
        math.fsum(score for run in one for score in run)
        for one in (runs, pairing.lift_cuts(runs, cuts, best))
    )
    asked = len(runs) * len(runs[0])
    value = reference.value + task.metric.scale * (after - before) / asked
    return CutsRight(replace(reference, value=value), sum(map(sum, cuts)), asked, len(runs))
