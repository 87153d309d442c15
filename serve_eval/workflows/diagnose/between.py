"""Rules that compare the answers of both sides of a comparison, prompt by prompt."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

from serve_eval.evaluation.agreement.answer_signs import SIGNS, is_loop
from serve_eval.evaluation.agreement.at_start import find_at_start
from serve_eval.schema import Response
from serve_eval.stats.binomial import binomial_tail
from serve_eval.stats.common_prefix import common_prefix
from serve_eval.stats.hypergeometric import no_worse
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.stats.other_model import is_like_another
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.evidence import FEW_TOKENS, TaskEvidence
from serve_eval.workflows.diagnose.finding import ALPHA, WEIGHTS, Finding, ids
from serve_eval.workflows.diagnose.paired_answers import ComparedAnswers

LEAST, MOST_SHARE = 10, 0.5
"""Answers that must differ in the same way, and the share of those that differ at all."""
TOLERATED, EARLY = 0.1, 0.5
"""Share by which answers may be shorter in the mean, and ratio below which they end early."""
AT_START, BY_CHANCE = 0.9, 0.05
"""Share of the different answers that differ from their first character on, and the probability
below which the others are too many for that share: two answers can begin alike by chance."""


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
    shown = [
        pair[side]
        for pair, cut in zip(both.pairs, cuts, strict=True)
        if cut[side] and not cut[1 - side]
    ]
    loops = sum(one.response is not None and is_loop(one.response.text) for one in shown)
    told = (
        f"{'AB'[side]} cuts {counts[side]} of {len(cuts)} answers at max_tokens where"
        f" {'AB'[1 - side]} cuts {counts[1 - side]}"
    )
    if 2 * loops > len(shown):
        told += f"; {loops} of them repeat themselves to the end"
    yield _find(
        both,
        "cuts",
        f"{told}: its answers do not end, and more tokens would not help",
        _find_server(side),
        shown,
        p,
        explains=sum(one.lost for one in shown) if side else None,
    )


def find_lengths(both: ComparedAnswers) -> Iterator[Finding]:
    """Yield a finding if one side's answers are shorter by a tenth of the mean or more.

    MLPerf's test TEST09 allows a tenth. Tokens are compared if both sides count them. Answers that
    were cut are those of `find_cuts`: their lengths say nothing.
    """
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
    side = 0 if means[0] < means[1] else 1
    shorter = [one[side] < one[1 - side] for one in lengths]
    p = mcnemar(sum(shorter), sum(a > b for a, b in _turn(lengths, side))).p_exact_two_sided
    if means[side] > (1 - TOLERATED) * means[1 - side] or p > ALPHA * both.share:
        return
    unit = "tokens" if counted else "characters"
    does = "stops early" if means[side] < EARLY * means[1 - side] else "gives shorter answers"
    yield _find(
        both,
        "lengths",
        f"{'AB'[side]} {does}: {means[side]:.1f} {unit} in the mean, and {'AB'[1 - side]}"
        f" {means[1 - side]:.1f}; shorter in {sum(shorter)} of {len(lengths)} prompts",
        (*_find_server(side), "compare stop strings, eos_token and generation_config of both"),
        [pair[side] for (pair, _), less in zip(whole, shorter, strict=True) if less],
        p,
    )


def _turn(lengths: Sequence[tuple[int, int]], side: int) -> list[tuple[int, int]]:
    """Return the pairs with the lengths of that side first."""
    return [(one[side], one[1 - side]) for one in lengths]


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
        yield _find(
            both,
            "signs",
            f"{counts[side]} of {len(texts)} answers of {'AB'[side]} {words}, and"
            f" {counts[1 - side]} of {'AB'[1 - side]}",
            _find_server(side),
            [pair[side] for pair, one in zip(both.pairs, marks, strict=True) if one[side]],
            p,
        )


def _length(response: Response, counted: bool) -> int:
    return response.usage.completion_tokens if counted else len(response.text)


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
        change = ("serve-eval verify A B", "serve-eval smoke URL --tokenizer DIR")
        samples = [both.pairs[i][1] for i in start]
        yield _find(both, "first_token", told, change, samples, None)
    elif len(differ) < MOST_SHARE * len(texts):
        yield from _find_some_first_differences(both, texts)


def _find_some_first_differences(
    both: ComparedAnswers, texts: Sequence[tuple[str, str]]
) -> Iterator[Finding]:
    """Yield a finding if some requests, and not most, seem to have had another prompt."""
    long, start, p = find_at_start(texts)
    if p > ALPHA * both.share or not _is_most(start, long):
        return
    yield _find(
        both,
        "first_token",
        f"{len(start)} of {len(texts)} answers of B differ from their first token on, and"
        f" {len(long) - len(start)} later: the prompt or KV cache of these requests was another"
        " one (blocks of other requests, a transfer, a prefix cache), not numerics",
        ("serve-eval attribute B for its servers, also in pairs",),
        [both.pairs[i][1] for i in start],
        p,
    )


def _is_most(start: Sequence[int], differ: Sequence[int]) -> bool:
    return binomial_tail(len(differ) - len(start), len(differ), 1 - AT_START) >= BY_CHANCE


def find_self_differences(both: ComparedAnswers) -> Iterator[Finding]:
    """Yield a finding if one side disagrees with itself far more often than the other."""
    own = (None, None) if both.compared is None else both.compared.own
    if own[0] is None or own[1] is None:
        return
    counts = [(one.prompts, one.prompts - one.identical) for one in own if one is not None]
    side = 0 if counts[0][1] * counts[1][0] > counts[1][1] * counts[0][0] else 1
    (n, k), (m, j) = counts[side], counts[1 - side]
    p = min(1.0, 2.0 * no_worse([(n, k, m, j)]))
    if p > ALPHA * both.share or k < LEAST:
        return
    yield _find(
        both,
        "self_differences",
        f"{'AB'[side]} disagrees with itself in {k} of {n} prompts and {'AB'[1 - side]} in {j} of"
        f" {m}: unlike servers behind one address, or answers that depend on the load",
        _find_server(side),
        [],
        p,
        of=n,
        count=k,
    )


RULES: tuple[Callable[[ComparedAnswers], Iterator[Finding]], ...] = (
    find_first_difference,
    find_cuts,
    find_lengths,
    find_signs,
    find_self_differences,
)


def find_even_losses(
    found: Iterable[ComparedAnswers], told: Collection[str | None], targets: tuple[str, str]
) -> Iterator[Finding]:
    """Yield a finding if one side lost answers that the other has, and no rule says where.

    `told` are the tasks about which rules have spoken, `targets` A and B as words of a command.
    """
    for both in found:
        wrong = [(one.bad, other.bad) for one, other in both.pairs]
        if both.name in told or (more := _more(wrong, ALPHA * both.share)) is None:
            continue
        side, counts, p = more
        rights = [[not one[place] for one in wrong] for place in (1 - side, side)]
        only = sum(one[side] and not one[1 - side] for one in wrong)
        yield _find(
            both,
            "even_loss",
            f"{'AB'[side]} has {only} answers wrong that {'AB'[1 - side]} has right, and"
            f" {counts[1 - side] - counts[side] + only} the other way round; no slice of"
            " the samples explains them: weights, precision or cache, rather than a fault of some"
            " requests",
            (f"serve-eval verify {' '.join(targets)}",),
            [pair[side] for pair, bad in zip(both.pairs, wrong, strict=True) if bad[side]],
            p,
            WEIGHTS,
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


def _find_server(side: int) -> tuple[str, ...]:
    return (f"serve-eval verify A B, and serve-eval attribute {'AB'[side]} for its servers",)


def _find(
    both: ComparedAnswers,
    rule: str,
    told: str,
    change: tuple[str, ...],
    shown: Sequence[AskedSample],
    p: float | None,
    rather: str = "",
    *,
    of: int | None = None,
    count: int | None = None,
    explains: int | None = None,
    leads: bool = True,
) -> Finding:
    return Finding(
        rule=rule,
        told=told,
        change=change,
        count=len(shown) if count is None else count,
        of=len(both.pairs) if of is None else of,
        explains=explains,
        lost=0 if explains is None else sum(other.lost for _, other in both.pairs),
        task=both.name,
        samples=ids(shown),
        p=p,
        rather=rather,
        leads=leads,
    )
