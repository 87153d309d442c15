"""Apply rules about answers that differ from the reference's in looks or in common traits.

It needs no key. The reference has these properties of each answer of its first run, which was taken
under the same protocol, so under health both answers to a prompt are exchangeable.

A model with a limit of 30 tokens has many cut answers among its wrong ones, also while it is sound.
So a finding that counts a property of wrong answers explains only those that the reference, or the
other side of a comparison, lacks. If their number is not known, it is no likely cause.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace

from serve_eval.evidence.answer_texts import find_scripts, is_loop, mark_shared
from serve_eval.frozen import freeze, freeze_places
from serve_eval.schema import Outcome, Response
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.verdicts.below_reference import count_wrong_at_most
from serve_eval.verdicts.pairing import read_stored_answers
from serve_eval.verdicts.reference_samples import StoredAnswers
from serve_eval.workflows.diagnose.breakdown import describe_verify
from serve_eval.workflows.diagnose.evidence import FEW_TOKENS, Evidence, TaskEvidence
from serve_eval.workflows.diagnose.extraction import (
    differs_by_extractor,
    goes_on,
    has_several_ends,
    is_stated,
    marks,
)
from serve_eval.workflows.diagnose.finding import (
    LEAST,
    LEAST_SHARE,
    AskedSample,
    Finding,
    count_turned,
    ids,
)
from serve_eval.workflows.diagnose.slice_data import Data, pair_with_reference

UNLIKE = 0.0005
"""Probability that the rule reports a healthy run, all its tests and tasks together."""
TESTS = 5
LEAST_ANSWERS, TOLERATED = 10, 0.1
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
    if len(responses) < LEAST_ANSWERS:
        return
    before = stored.take([places[one.id] for one in asked])
    level, lost = UNLIKE * task.share / TESTS, _find_lost_before(task, data)
    for sign in _mark(before, responses):
        only = sum(b and not a for a, b in zip(sign.old, sign.new, strict=True))
        back = sum(a and not b for a, b in zip(sign.old, sign.new, strict=True))
        p = min(1.0, sign.tries * mcnemar(only, back).p_exact_two_sided)
        if only >= LEAST_ANSWERS and only > back and p <= level:
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


@freeze_places
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
    if len(whole) < LEAST_ANSWERS:
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
        "unlike",
        told,
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


MOSTLY_LOST = 0.9
"""Share of the answers with a property that are wrong, from which a right answer lacks it."""


def _by_response(test: Callable[[Response], bool]) -> Callable[[TaskEvidence, AskedSample], bool]:
    return lambda task, one: one.response is not None and test(one.response)


def _by_outcome(outcome: Outcome) -> Callable[[TaskEvidence, AskedSample], bool]:
    return lambda task, one: one.outcome == outcome


def _runs_on(task: TaskEvidence, one: AskedSample) -> bool:
    chat = bool(task.option("apply_chat_template"))
    return one.response is not None and goes_on(one.response.text, chat=chat)


COUNTED: Mapping[str, Callable[[TaskEvidence, AskedSample], bool]] = {
    "truncated": _by_response(lambda response: response.truncated),
    "unclosed_reasoning": _by_outcome(Outcome.REASONING_ONLY),
    "misfiled": _by_outcome(Outcome.REASONING_ONLY),
    "stopped_in_reasoning": _by_response(lambda response: response.stopped_in_reasoning),
    "stop_string": _by_response(lambda response: response.stop_reason is not None),
    "empty": _by_outcome(Outcome.EMPTY),
    "unreadable": _by_outcome(Outcome.UNPARSED),
    "looping": _by_response(lambda response: response.looping),
    "template_marks": _by_response(lambda response: bool(marks(response.text))),
    "end_tokens": _by_response(lambda response: has_several_ends(response.text)),
    "run_on": _runs_on,
    "extraction": is_stated,
    "extractors": differs_by_extractor,
}
"""The property of an answer that each rule counts."""


@freeze
class Before:
    """The answers to compare with, by the ids of their prompts.

    `lost` are those that were wrong or missing there (None: not known one by one), and at most
    `most` were (None: not known). `marked` has those with the property of a rule, as far as known;
    with `task`, all properties are.
    """

    name: str
    ids: frozenset[str] = frozenset()
    lost: frozenset[str] | None = None
    most: int | None = None
    marked: Mapping[str, frozenset[str]] = field(default_factory=dict)
    task: TaskEvidence | None = None

    def find_marked(self, rule: str) -> frozenset[str] | None:
        """Return the lost answers with the property that a rule counts, None if not known."""
        if self.task is not None:
            return _find_lost(self.task, COUNTED[rule])
        if self.lost is None or rule not in self.marked:
            return None
        return self.marked[rule] & self.lost


def read_reference(task: TaskEvidence, data: Data) -> Before | None:
    """Return what is known of the answers of a reference; None without one.

    Its file has the cuts and loops of its first run, and the scores of all. Of a published value,
    and of a reference of another protocol, only the number of wrong answers counts.
    """
    report = task.report
    if report is None or report.reference is None:
        return None
    metric, reference = report.result.metric, report.reference
    most = count_wrong_at_most(
        metric,
        reference.value,
        len(task.witnesses(task.asked)),
        higher_is_better=reference.higher_is_better,
        graded=any(
            one.line is not None and one.line.value not in (metric.lo, metric.hi)
            for one in task.scored
        ),
    )
    scores = pair_with_reference(task, data)
    if scores is None or "mismatch allowed" in (report.verdict.protocol or ""):
        return Before(name="the reference", most=most)
    ids = [one.id for one in scores.asked]
    right, _ = scores.rights()
    dataset = data[task.name][1]
    stored, marked = read_stored_answers(dataset, report.reference), {}
    if stored is not None:
        flags = {"truncated": stored.cut, "looping": stored.looping}
        marked = {
            rule: frozenset(s.id for s, is_so in zip(dataset.samples, of, strict=True) if is_so)
            for rule, of in flags.items()
        }
    return Before(
        name="the reference's first run",
        ids=frozenset(ids),
        lost=frozenset(name for name, was_right in zip(ids, right, strict=True) if not was_right),
        most=most,
        marked=marked,
    )


def read_side(name: str, other: TaskEvidence) -> Before:
    """Return the answers of the other side of a comparison, all of whose properties are known."""
    ids = frozenset(one.id for one in other.witnesses(other.asked))
    return Before(name=name, ids=ids, lost=_find_lost(other), task=other)


def keep_surplus(
    found: Iterable[Finding], task: TaskEvidence, before: Before | None
) -> list[Finding]:
    """Return findings, of which those about a property of wrong answers explain only the surplus.

    One that explains none has no advice, and one whose surplus is not known does not lead.
    """
    return [
        _compare(one, task, before)
        if one.rule in COUNTED and one.task == task.name and one.explains
        else one
        for one in found
    ]


def _compare(finding: Finding, task: TaskEvidence, before: Before | None) -> Finding:
    mark = COUNTED[finding.rule]
    new = _find_lost(task, mark)
    old = None if before is None else before.find_marked(finding.rule)
    if before is not None and old is not None:
        only, back = len((new - old) & before.ids), len((old - new) & before.ids)
        many = len(old)
        return _explain(finding, task, only, back, len(new), f"{many} in {before.name}")
    if before is None or not _is_mostly_lost(task, mark):
        return replace(finding, leads=False)
    if before.lost is not None:
        turned = len((new - before.lost) & before.ids)
        other = len((before.lost - _find_lost(task)) & before.ids)
        one = _explain(finding, task, turned, other, len(new), f"{turned} right in {before.name}")
        return one if one.explains else replace(finding, leads=False)
    surplus = len(new) - (before.most or len(new))
    if surplus < _least(task):
        return replace(finding, leads=False)
    told = f"more than all {before.most} wrong ones of {before.name}"
    return _restate(finding, surplus, len(new), told)


def _explain(
    finding: Finding, task: TaskEvidence, only: int, back: int, of: int, told: str
) -> Finding:
    """Return a finding of which `only` answers are new, while `back` of the others are not there.

    The surplus counts if chance does not explain it, at the level of a rule.
    """
    surplus = count_turned(task, only, back)
    if surplus < _least(task):
        return replace(_restate(finding, 0, of, told), change=(), leads=False)
    return _restate(finding, surplus, of, told)


def _restate(finding: Finding, surplus: int, of: int, told: str) -> Finding:
    """Return a finding with the surplus in its words, for all repeats of a prompt."""
    explains = round(surplus * (finding.explains or 0) / max(1, of))
    first, mark, rest = finding.told.partition("; ")
    words = f"{first} ({told}){mark}{rest}"
    return replace(finding, told=words, explains=min(explains, finding.explains or 0))


def _least(task: TaskEvidence) -> float:
    return max(LEAST, LEAST_SHARE * len(task.witnesses(task.lost)))


def _find_lost(
    task: TaskEvidence, mark: Callable[[TaskEvidence, AskedSample], bool] | None = None
) -> frozenset[str]:
    """Return the ids of the lost samples, those with a property if it is given."""
    return frozenset(
        one.id
        for one in task.witnesses(task.asked)
        if one.lost and (mark is None or mark(task, one))
    )


def _is_mostly_lost(task: TaskEvidence, mark: Callable[[TaskEvidence, AskedSample], bool]) -> bool:
    shown = [one for one in task.witnesses(task.asked) if mark(task, one)]
    return sum(one.lost for one in shown) >= MOSTLY_LOST * len(shown)
