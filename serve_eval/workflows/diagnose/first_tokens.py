"""Rules about the first tokens in which the answers of both sides of a comparison differ."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from serve_eval.evidence.agreement.answer_texts import find_at_start
from serve_eval.schema import VerdictOutcome
from serve_eval.stats.binomial import binomial_tail
from serve_eval.stats.common_prefix import common_prefix
from serve_eval.workflows.diagnose.finding import ALPHA, OVERRULED, PLACE, Finding
from serve_eval.workflows.diagnose.paired_answers import ComparedAnswers, make_finding
from serve_eval.workflows.diagnose.server_defaults import SAME

LEAST, MOST_SHARE = 10, 0.5
"""Answers that must differ in the same way, and the share of those that differ at all."""
AT_START, BY_CHANCE = 0.9, 0.05
"""Share of the different answers that differ from their first character on, and the probability
below which the others are too many for that share: two answers can begin alike by chance."""


def find_place(both: ComparedAnswers) -> Iterator[Finding]:
    """Yield what the comparison read from the first tokens in which flips of a red task differ.

    It asked both sides for these tokens, so this says more than the texts, and leads.
    """
    compared = both.compared
    if compared is None or compared.verdict.outcome is not VerdictOutcome.FAIL:
        return
    if compared.places is None or not compared.places.reading:
        return
    flips = {flip.id for flip in compared.flips}
    shown = [other for _, other in both.every if other.id in flips]
    told, side = compared.places.reading, compared.places.overruled
    if side is None:
        yield make_finding(both, PLACE, told, both.next[1], shown, None, of_every=True)
        return
    yield make_finding(both, OVERRULED, told, SAME, shown, None, of_every=True)


def find_first_difference(both: ComparedAnswers) -> Iterator[Finding]:
    """Yield a finding if almost all answers that differ do so from their first token on.

    If few answers differ, those that are too short to differ elsewhere do not count, and a test
    says whether the others are too many.
    """
    texts = [(one.text, other.text) for one, other in both.responses]
    differ = [i for i, (one, other) in enumerate(texts) if one != other]
    start = [i for i in differ if common_prefix(*texts[i]) == 0]
    if len(differ) >= max(LEAST, MOST_SHARE * len(texts)) and _is_most(start, differ):
        told = (
            f"B differs from its first token on in {len(start)} of {len(texts)} answers: another"
            " prompt, such as by another template, or other weights, and not a fault of long"
            " answers"
        )
        change = (*both.next[1], "serve-eval smoke URL --set smoke.tokenizer=DIR")
        samples = [both.pairs[i][1] for i in start]
        yield make_finding(both, "first_token", told, change, samples, None)
    elif len(differ) < MOST_SHARE * len(texts):
        yield from _find_some_first_differences(both, texts)


def _find_some_first_differences(
    both: ComparedAnswers, texts: Sequence[tuple[str, str]]
) -> Iterator[Finding]:
    """Yield a finding if some requests, and not most, seem to have had another prompt."""
    long, start, p = find_at_start(texts)
    if p > ALPHA * both.share or not _is_most(start, long):
        return
    yield make_finding(
        both,
        "first_token",
        f"{len(start)} of {len(texts)} answers of B differ from their first token on, and"
        f" {len(long) - len(start)} later: the prompt or KV cache of these requests was another"
        " one (blocks of other requests, a transfer, a prefix cache), not numerics",
        both.next[1],
        [both.pairs[i][1] for i in start],
        p,
    )


def _is_most(start: Sequence[int], differ: Sequence[int]) -> bool:
    return binomial_tail(len(differ) - len(start), len(differ), 1 - AT_START) >= BY_CHANCE
