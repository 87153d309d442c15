"""The rule about answers that look unlike the reference's: lengths, cuts, loops and scripts.

It needs no key. The reference has these properties of each answer of its first run, which was taken
under the same protocol, so under health both answers to a prompt are exchangeable.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from serve_eval.evidence.agreement.answer_texts import find_scripts, is_loop, mark_shared
from serve_eval.schema import Response
from serve_eval.stats.mcnemar import mcnemar
from serve_eval.verdicts.pairing import read_stored_answers
from serve_eval.verdicts.reference_answers import StoredAnswers
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.breakdown import describe_verify
from serve_eval.workflows.diagnose.evidence import FEW_TOKENS, Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import Finding, count_turned, ids
from serve_eval.workflows.diagnose.slice_data import Data, pair_with_reference

UNLIKE = 0.0005
"""Probability that the rule reports a healthy run, all its tests and tasks together."""
TESTS = 5
LEAST, TOLERATED = 10, 0.1
"""Answers that must differ in one direction, and the share by which the mean length may differ
(MLPerf's test TEST09)."""


def find_unlike(run: Evidence, task: TaskEvidence, data: Data) -> Iterator[Finding]:
    """Yield findings about answers of a task that differ from the reference's."""
    report = task.report
    if report is None or report.reference is None or task.name not in data:
        return
    if "mismatch allowed" in (report.verdict.protocol or "") or task.max_tokens <= FEW_TOKENS:
        return
    dataset = data[task.name][1]
    if (stored := read_stored_answers(dataset, report.reference)) is None:
        return
    places = {sample.id: place for place, sample in enumerate(dataset.samples)}
    asked = [one for one in task.witnesses(task.texts) if one.id in places]
    responses = [one.response for one in asked if one.response is not None]
    if len(responses) < LEAST:
        return
    before = stored.take([places[one.id] for one in asked])
    level, lost = UNLIKE * task.share / TESTS, _find_lost_before(task, data)
    for sign in _mark(before, responses):
        only = sum(b and not a for a, b in zip(sign.old, sign.new, strict=True))
        back = sum(a and not b for a, b in zip(sign.old, sign.new, strict=True))
        p = min(1.0, sign.tries * mcnemar(only, back).p_exact_two_sided)
        if only >= LEAST and only > back and p <= level:
            told = f"{sum(sign.new)} of {len(asked)} answers {sign.words}"
            told += f", and {sum(sign.old)} of the reference's"
            shown = [one for one, is_so in zip(asked, sign.new, strict=True) if is_so]
            turned = [
                one
                for one, was_so, is_so in zip(asked, sign.old, sign.new, strict=True)
                if is_so and not was_so
            ]
            explains = _count_explained(task, turned, lost)
            yield _report(run, task, told, shown, len(asked), p, explains)
    yield from _find_lengths(run, task, asked, responses, before, level, lost)


def _find_lost_before(task: TaskEvidence, data: Data) -> frozenset[str]:
    """Return the prompts that the first run of the reference answered wrong."""
    scores = pair_with_reference(task, data)
    if scores is None:
        return frozenset()
    right, _ = scores.rights()
    return frozenset(
        one.id for one, was_right in zip(scores.asked, right, strict=True) if not was_right
    )


def _count_explained(task: TaskEvidence, shown: Sequence[AskedSample], lost: frozenset[str]) -> int:
    """Return how many more answers with a new sign turned wrong than right."""
    turned = sum(one.lost and one.id not in lost for one in shown)
    return count_turned(task, turned, sum(not one.lost and one.id in lost for one in shown))


@dataclass(frozen=True, slots=True)
class _Sign:
    """The answers of the reference and of the run that show a sign, the worst of `tries`."""

    words: str
    old: Sequence[bool]
    new: Sequence[bool]
    tries: int = 1


def _mark(before: StoredAnswers, responses: Sequence[Response]) -> list[_Sign]:
    texts = [one.text for one in responses]
    found = [
        _Sign("were cut at max_tokens", before.cut, [one.truncated for one in responses]),
        _Sign("repeat themselves to the end", before.looping, list(map(is_loop, texts))),
        _Sign("equal the answer to another prompt", before.shared, mark_shared(texts, ())),
    ]
    scripts = list(map(find_scripts, texts))
    counts = Counter(script for one in scripts for script in one)
    foreign = [script for script, _ in counts.most_common() if script not in before.scripts]
    if foreign:
        words = f"have {foreign[0].capitalize()} letters"
        marks = [foreign[0] in one for one in scripts]
        found.append(_Sign(words, [False] * len(texts), marks, tries=len(counts)))
    return found


def _find_lengths(
    run: Evidence,
    task: TaskEvidence,
    asked: Sequence[AskedSample],
    responses: Sequence[Response],
    before: StoredAnswers,
    level: float,
    lost: frozenset[str],
) -> Iterator[Finding]:
    """Yield a finding if whole answers are longer or shorter by a tenth of the mean or more."""
    counts = [one.usage.completion_tokens if before.counted else len(one.text) for one in responses]
    whole = [
        (one, old, new)
        for one, response, old, new, cut in zip(
            asked, responses, before.lengths, counts, before.cut, strict=True
        )
        if not (cut or response.truncated) and new
    ]
    if len(whole) < LEAST:
        return
    old_mean = statistics.fmean(old for _, old, _ in whole)
    new_mean = statistics.fmean(new for _, _, new in whole)
    less = [one for one, old, new in whole if new < old]
    more = [one for one, old, new in whole if new > old]
    shown, others, word = (less, more, "shorter") if new_mean < old_mean else (more, less, "longer")
    p = mcnemar(len(shown), len(others)).p_exact_two_sided
    if abs(new_mean - old_mean) <= TOLERATED * old_mean or p > level or len(shown) <= len(others):
        return
    unit = "tokens" if before.counted else "characters"
    told = (
        f"answers are {word} than the reference's: {new_mean:.1f} {unit} in the mean instead of"
        f" {old_mean:.1f}; {word} in {len(shown)} of {len(whole)} prompts"
    )
    yield _report(run, task, told, shown, len(whole), p, _count_explained(task, shown, lost))


def _report(
    run: Evidence,
    task: TaskEvidence,
    told: str,
    shown: Sequence[AskedSample],
    of: int,
    p: float,
    explains: int,
) -> Finding:
    return Finding(
        rule="unlike",
        told=told,
        change=(
            describe_verify(run),
            "compare stop strings, eos_token and the chat template with those of the reference",
        ),
        count=len(shown),
        of=of,
        explains=explains,
        lost=len(task.lost),
        task=task.name,
        samples=ids(shown),
        p=p,
    )
