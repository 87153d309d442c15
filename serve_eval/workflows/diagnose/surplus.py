"""Compare what wrong answers have in common with the same in the reference, or on the other side.

A model with a limit of 30 tokens has many cut answers among its wrong ones, also while it is sound.
So a finding that counts a property of wrong answers explains only those that the reference, or the
other side of a comparison, lacks. If their number is not known, it is no likely cause.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

from serve_eval.schema import Outcome, Response
from serve_eval.verdicts.pairing import read_stored_answers
from serve_eval.verdicts.wrong_at_most import count_wrong_at_most
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.evidence import TaskEvidence
from serve_eval.workflows.diagnose.extraction import differs_by_extractor, is_stated
from serve_eval.workflows.diagnose.finding import LEAST, LEAST_SHARE, Finding, count_turned
from serve_eval.workflows.diagnose.slice_data import Data, pair_with_reference
from serve_eval.workflows.diagnose.template import goes_on, has_several_ends, marks

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
