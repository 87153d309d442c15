"""Compare the answers of two sides token by token.

Deployments with batch-invariant kernels, or that move KV caches between servers, promise the same
tokens. Run folders hold texts and numbers of generated tokens, so these are compared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Literal, NamedTuple

from serve_eval.evidence.agreement import answer_pairs
from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.evidence.agreement.answer_texts import find_first_divergences, join_text, part
from serve_eval.schema import Parting, TokenEquality, Verdict, VerdictOutcome
from serve_eval.workflows.compare.steadiness import Second

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


class SpokenAnswer(NamedTuple):
    """The text of an answer and the number of its tokens (0: not reported)."""

    text: str
    tokens: int


Spoken = Mapping[str, SpokenAnswer]


class ExactAnswers(NamedTuple):
    """The equality of the answers of two sides, and the pairs that the verdict rule judges.

    `known` are the pairs of the prompts whose first answers are known on both sides.
    """

    equality: TokenEquality
    pairs: Pairs | None
    known: Pairs | None


def compare_tokens(
    a: TaskAnswers,
    b: TaskAnswers,
    twice: Mapping[str, Second],
    *,
    placed: Mapping[str, int],
    hidden: frozenset[str],
    show: int,
) -> ExactAnswers | None:
    """Compare all answers; return None if the task asks for none, but for probabilities.

    `placed` has the tokens at which examined prompts part. At most `show` partings are kept, none
    of the `hidden` prompts. Raises RunFolderError for journals that cannot be read.
    """
    runs = [(_read(a, run), _read(b, run)) for run in range(min(len(a.lines), len(b.lines)))]
    if not any(one.text or one.tokens > 1 for run in runs for side in run for one in side.values()):
        return None
    planned = max(a.planned, b.planned) * len(runs)
    doubted = [
        {prompt for side in (a, b) for prompt in (side.doubted[run] if side.doubted else ())}
        for run in range(len(runs))
    ]
    sure = [
        prompt not in doubted[number]
        for number, (first, second) in enumerate(runs)
        for prompt in first
        if prompt in second
    ]
    both = [
        (f"{prompt}#{number + 1}" if number else prompt, one, second[prompt])
        for number, (first, second) in enumerate(runs)
        for prompt, one in first.items()
        if prompt in second
    ]
    counts = _compare_counts([(one, other) for _, one, other in both])
    changed = [(name, one.text, other.text) for name, one, other in both if one.text != other.text]
    recounted = [
        counts == "compared" and one.text == other.text and one.tokens != other.tokens
        for _, one, other in both
    ]
    partings = _part(changed, placed)
    placed_ones = [one for one in partings.values() if one.token is not None]
    equality = TokenEquality(
        answers=len(both),
        missing=max(0, planned - len(both)),
        different=len(changed),
        other_counts=sum(recounted),
        counts=counts,
        own=(_own(a, runs[0][0], twice.get("A")), _own(b, runs[0][1], twice.get("B"))),
        partings=dict([(n, one) for n, one in partings.items() if n not in hidden][:show]),
        places=find_first_divergences(placed_ones or [*partings.values()]),
    )
    equal = [
        one.text == other.text and not again
        for (_, one, other), again in zip(both, recounted, strict=True)
    ]
    known = [same for same, certain in zip(equal, sure, strict=True) if certain]
    return ExactAnswers(
        equality, _pair(equal, equality.missing), _pair(known, planned - len(known))
    )


def _read(answers: TaskAnswers, run: int) -> Spoken:
    return {
        prompt: SpokenAnswer(join_text(response), response.usage.shown_tokens)
        for prompt, response in answer_pairs.read_responses(answers, run)
    }


def _compare_counts(
    pairs: Sequence[tuple[SpokenAnswer, SpokenAnswer]],
) -> Literal["compared", "none", "otherwise"]:
    """Return if the numbers of tokens of both sides can be compared.

    Two servers that count the end of an answer, or thoughts, otherwise do so in nearly all answers.
    """
    equal = [(one.tokens, other.tokens) for one, other in pairs if one.text == other.text]
    if not any(one for one, _ in equal) or not any(other for _, other in equal):
        return "none"
    apart = sum(one != other for one, other in equal)
    return "otherwise" if 2 * apart > len(equal) else "compared"


def _part(changed: Sequence[tuple[str, str, str]], placed: Mapping[str, int]) -> dict[str, Parting]:
    """Return the partings by prompt, those with a known token first."""
    found = {name: part(one, other) for name, one, other in changed}
    return {
        name: replace(one, token=placed.get(name))
        for name, one in sorted(
            found.items(), key=lambda one: (one[0] not in placed, len(one[0]), one[0])
        )
        if one is not None
    }


def _own(once: TaskAnswers, first: Spoken, second: Second | None) -> tuple[int, int] | None:
    """Count the prompts to which a side gave another text when asked again, and those asked."""
    if second is None or not second.noise or second.drawn == "other_seeds":
        return None
    repeats = range(1, len(once.lines))
    again = (
        [_read(once, run) for run in repeats]
        if second.answers is None
        else [_read(second.answers, 0)]
    )
    asked = [prompt for prompt in first if any(prompt in one for one in again)]
    other = [p for p in asked if any(p in one and one[p].text != first[p].text for one in again)]
    return len(other), len(asked)


def _pair(equal: Sequence[bool], missing: int) -> Pairs | None:
    from serve_eval.stats.pairs import pair

    if not equal:
        return None
    lacking = [math.nan] * missing
    ones = [1.0] * len(equal)
    return pair(
        [[*ones, *lacking]], [[*map(float, equal), *lacking]], lo=0.0, hi=1.0, higher_is_better=True
    )


def add_own(verdict: Verdict, equality: TokenEquality) -> Verdict:
    """Return the verdict with what the second answers of each side say.

    A B that differs from itself breaks the promise even if its first answers equal A's.
    """
    reasons, warnings = list(verdict.reasons), list(verdict.warnings)
    (of_a, of_b), outcome = equality.own, verdict.outcome
    if of_b is not None and of_b[0]:
        reasons.append(
            f"own_differences: B gives another text to {of_b[0]} of {of_b[1]} prompts when asked"
            " again"
        )
        outcome = VerdictOutcome.FAIL
    if of_a is not None and of_a[0]:
        warnings.append(
            f"A gives another text to {of_a[0]} of {of_a[1]} prompts when asked again: no B can"
            " equal it"
        )
    return replace(verdict, outcome=outcome, reasons=tuple(reasons), warnings=tuple(warnings))
