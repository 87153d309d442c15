"""Apply rules that compare the answers of both sides of a comparison, prompt by prompt."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from serve_eval.evidence.answer_texts import SIGNS, find_at_start, is_loop
from serve_eval.schema import Response, VerdictOutcome
from serve_eval.stats.distances import common_prefix
from serve_eval.stats.losses import is_like_another
from serve_eval.stats.no_worse import no_worse
from serve_eval.stats.sign_tests import binomial_tail, mcnemar
from serve_eval.workflows.diagnose.breakdown import TRANSFER
from serve_eval.workflows.diagnose.evidence import FEW_TOKENS, TaskEvidence
from serve_eval.workflows.diagnose.finding import (
    ALPHA,
    OVERRULED,
    PLACE,
    WEIGHTS,
    AskedSample,
    Finding,
    count_turned,
)
from serve_eval.workflows.diagnose.paired_answers import (
    ComparedAnswers,
    make_finding,
    sum_by_prompt,
)
from serve_eval.workflows.diagnose.setting import SAME

LEAST_TEXTS, MOST_SHARE = 10, 0.5
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
    if len(differ) >= max(LEAST_TEXTS, MOST_SHARE * len(texts)) and _is_most(start, differ):
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


LEAST = 10
"""Answers that must differ in the same way."""
TOLERATED, EARLY = 0.1, 0.5
"""Share by which answers may be shorter in the mean, and ratio below which they end early."""


def find_differences(found: Iterable[ComparedAnswers]) -> Iterator[Finding]:
    """Yield the findings of all rules about both sides."""
    for one in found:
        for rule in RULES:
            yield from rule(one)


def find_cuts(both: ComparedAnswers) -> Iterator[Finding]:
    """Yield a finding if one side cuts many more answers at max_tokens than the other.

    Both sides have the same limit, so more tokens are no remedy.
    """
    cuts = [(one.truncated, other.truncated) for one, other in both.responses]
    if both.a.max_tokens <= FEW_TOKENS or (more := _more(cuts, ALPHA * both.share)) is None:
        return
    side, counts, p = more
    if both.worse == 1 - side:  # answers of the sound side may well be longer
        return
    new = [
        pair for pair, cut in zip(both.pairs, cuts, strict=True) if cut[side] and not cut[1 - side]
    ]
    shown = [pair[side] for pair in new]
    loops = sum(one.response is not None and is_loop(one.response.text) for one in shown)
    told = (
        f"{'AB'[side]} cuts {counts[side]} of {len(cuts)} answers at max_tokens where"
        f" {'AB'[1 - side]} cuts {counts[1 - side]}"
    )
    if 2 * loops > len(shown):
        told += f"; {loops} of them repeat themselves to the end"
    yield make_finding(
        both,
        "cuts",
        f"{told}: its answers do not end, and more tokens would not help",
        both.next[side],
        shown,
        p,
        explains=_count_explained(both, new, side),
    )


def find_lengths(both: ComparedAnswers) -> Iterator[Finding]:
    """Yield a finding if one side's answers are shorter by a tenth of the mean or more.

    MLPerf's test TEST09 allows a tenth. Tokens are compared if both sides count them. Answers that
    were cut are those of `find_cuts`, and so are all of a side that cuts: where answers do not end,
    the others are no shorter than they should be. The side that lost score is named, or else B.
    """
    if any(True for _ in find_cuts(both)):
        return
    whole = [
        (pair, both_said)
        for pair, both_said in zip(both.pairs, both.responses, strict=True)
        if not any(one.truncated for one in both_said)
    ]
    responses = [both_said for _, both_said in whole]
    counted = all(
        one.usage.completion_tokens and other.usage.completion_tokens for one, other in responses
    )
    lengths = [(_length(one, counted), _length(other, counted)) for one, other in responses]
    if len(lengths) < LEAST:
        return
    means = [statistics.fmean(side) for side in zip(*lengths, strict=True)]
    short = 0 if means[0] < means[1] else 1
    shorter = [one[short] < one[1 - short] for one in lengths]
    p = mcnemar(sum(shorter), sum(one[short] > one[1 - short] for one in lengths)).p_exact_two_sided
    if means[short] > (1 - TOLERATED) * means[1 - short] or p > ALPHA * both.share:
        return
    side = 1 if both.worse is None else both.worse
    unit = "tokens" if counted else "characters"
    does = "gives longer answers"
    if side == short:
        early = means[short] < EARLY * means[1 - short]
        does = "stops early" if early else "gives shorter answers"
    than = "shorter" if side == short else "longer"
    shown = [pair for (pair, _), less in zip(whole, shorter, strict=True) if less]
    yield make_finding(
        both,
        "lengths",
        f"{'AB'[side]} {does}: {means[side]:.1f} {unit} in the mean, and {'AB'[1 - side]}"
        f" {means[1 - side]:.1f}; {than} in {sum(shorter)} of {len(lengths)} prompts",
        (*both.next[side], "compare stop strings, eos_token and generation_config of both"),
        [pair[side] for pair in shown],
        p,
        explains=_count_explained(both, shown, side),
    )


def find_signs(both: ComparedAnswers) -> Iterator[Finding]:
    """Yield a finding for each sign of damage that the answers of one side show more often."""
    texts = [(one.text, other.text) for one, other in both.responses]
    if not texts:
        return
    a, b = (list(side) for side in zip(*texts, strict=True))
    for words, mark in SIGNS.items():
        marks = list(zip(mark(a, b), mark(b, a), strict=True))
        if (more := _more(marks, ALPHA * both.share / len(SIGNS))) is None:
            continue
        side, counts, p = more
        if both.worse == 1 - side:
            continue
        yield make_finding(
            both,
            "signs",
            f"{counts[side]} of {len(texts)} answers of {'AB'[side]} {words}, and"
            f" {counts[1 - side]} of {'AB'[1 - side]}",
            both.next[side],
            [pair[side] for pair, one in zip(both.pairs, marks, strict=True) if one[side]],
            p,
            explains=_count_explained(
                both,
                [
                    pair
                    for pair, one in zip(both.pairs, marks, strict=True)
                    if one[side] and not one[1 - side]
                ],
                side,
            ),
        )


def _count_explained(
    both: ComparedAnswers, shown: Sequence[tuple[AskedSample, AskedSample]], side: int
) -> int | None:
    """Return how many more of these answers are wrong on a side alone than on the other alone.

    None for A, whose lost answers are not counted.
    """
    only = [
        sum(a.lost and not b.lost for a, b in shown),
        sum(b.lost and not a.lost for a, b in shown),
    ]
    return count_turned(both.b, only[1], only[0]) if side else None


def _length(response: Response, counted: bool) -> int:
    return response.usage.completion_tokens if counted else len(response.text)


def find_self_differences(both: ComparedAnswers) -> Iterator[Finding]:
    """Yield a finding if one side disagrees with itself far more often than the other."""
    own = (None, None) if both.compared is None else both.compared.own
    if own[0] is None or own[1] is None:
        return
    counts = [(one.counted, one.counted - one.identical) for one in own if one is not None]
    side = 0 if counts[0][1] * counts[1][0] > counts[1][1] * counts[0][0] else 1
    (n, k), (m, j) = counts[side], counts[1 - side]
    # The mean over the pairs of answers to a prompt varies no more than one pair does.
    scaled = [
        (one.prompts, differ * one.prompts // one.counted)
        for one, (_, differ) in zip(own, counts, strict=True)
        if one is not None and one.counted
    ]
    p = min(1.0, 2.0 * no_worse([(*scaled[side], *scaled[1 - side])])) if len(scaled) > 1 else 1.0
    if p > ALPHA * both.share or scaled[side][1] < LEAST or both.worse == 1 - side:
        return
    unit = "prompts" if n == scaled[side][0] else "pairs of its answers"
    draws = (both.a, both.b)[side].option("temperature") != 0
    flat = "a flatter distribution, since the temperature is above 0, " if draws else ""
    yield make_finding(
        both,
        "self_differences",
        f"{'AB'[side]} disagrees with itself in {k} of {n} {unit} and {'AB'[1 - side]} in {j} of"
        f" {m}: {flat}unlike servers behind one address, or answers that depend on the load",
        both.next[side],
        [],
        p,
        of=n,
        count=k,
        of_every=True,
    )


RULES: tuple[Callable[[ComparedAnswers], Iterator[Finding]], ...] = (
    find_place,
    find_first_difference,
    find_cuts,
    find_lengths,
    find_signs,
    find_self_differences,
)


def find_even_losses(
    found: Iterable[ComparedAnswers], told: Collection[str | None]
) -> Iterator[Finding]:
    """Yield a finding if one side lost answers that the other has, and no rule says where.

    `told` are the tasks about which rules have spoken.
    """
    for both in found:
        more = sum_by_prompt((both.a, one.id, one.bad - other.bad) for one, other in both.every)
        more_at = [sum(change > 0 for change in more), sum(change < 0 for change in more)]
        side = 0 if more_at[0] > more_at[1] else 1
        p = mcnemar(more_at[side], more_at[1 - side]).p_exact_two_sided
        if both.name in told or p > ALPHA * both.share or more_at[side] < LEAST:
            continue
        wrong = [(one.bad, other.bad) for one, other in both.pairs]
        rights = [[not one[place] for one in wrong] for place in (1 - side, side)]
        every = [(one.bad, other.bad) for one, other in both.every]
        only, others = (sum(x[i] and not x[1 - i] for x in every) for i in (side, 1 - side))
        several = f" of {len(every)} pairs" if len(every) > len(wrong) else ""
        yield make_finding(
            both,
            "even_loss",
            f"{'AB'[side]} has {only} answers wrong that {'AB'[1 - side]} has right, and"
            f" {others} the other way round{several}; no slice of"
            " the samples explains them: weights, precision or cache"
            f"{f', or {TRANSFER}' if both.legs[side] else ''}, rather than a fault of some"
            " requests",
            both.next[side],
            [pair[side] for pair, bad in zip(both.every, every, strict=True) if bad[side]],
            p,
            WEIGHTS,
            of=len(every),
            of_every=True,
            leads=not is_like_another(*rights),
        )


LEVELS = {
    "first_token": ALPHA,
    "cuts": ALPHA,
    "lengths": ALPHA,
    "signs": ALPHA,
    "self_differences": ALPHA,
    "even_loss": ALPHA,
}
"""Levels of these rules for each task of a comparison."""


def drop_contradicted(findings: Sequence[Finding], other: TaskEvidence) -> list[Finding]:
    """Return the findings about one side without advice that the other side refutes.

    More tokens help no side if the other one needs no more for the same prompts.
    """
    return [
        one
        for one in findings
        if not (one.rule == "truncated" and one.task == other.name and _needs_no_more(one, other))
    ]


def _needs_no_more(finding: Finding, other: TaskEvidence) -> bool:
    cut = sum(one.response is not None and one.response.truncated for one in other.texts)
    return bool(other.texts) and 2 * cut * finding.of < finding.count * len(other.texts)


def _more(
    pairs: Sequence[tuple[bool, bool]], level: float
) -> tuple[int, tuple[int, int], float] | None:
    """Return the side that shows a sign more often, both counts, and p; None if neither clearly."""
    only = [sum(a and not b for a, b in pairs), sum(b and not a for a, b in pairs)]
    side = 0 if only[0] > only[1] else 1
    p = mcnemar(only[side], only[1 - side]).p_exact_two_sided
    if p > level or only[side] < LEAST:
        return None
    return side, (sum(a for a, _ in pairs), sum(b for _, b in pairs)), p
