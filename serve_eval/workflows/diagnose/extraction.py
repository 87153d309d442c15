"""Apply rules about answers that a reader would accept and the scorer does not."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from serve_eval.report.summary import name_expected
from serve_eval.schema import Outcome, is_mutable
from serve_eval.scorers import boxed, choice, numeric, passkey
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.workflows.diagnose.asked import AskedSample
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import ALPHA, Finding, about, capsule_of, matters
from serve_eval.workflows.diagnose.template import goes_on, marks

STATED_SHARE = 0.3
"""Share of the wrong answers that have to state the target before it is reported."""
UNREADABLE_SHARE = 0.3
"""Share of the answers from which unreadable ones are reported."""
APART, APART_BEHIND = 0.1, 0.04
"""Share of the answers in which two extractors have to differ: in general, and where the one that
reads a marked place is right and the one that reads the end is not, which a sound model rarely
does."""
EXTRACTORS = (
    (numeric.STRICT, numeric.FLEXIBLE),
    (passkey.FIRST, passkey.CONTAINED),
    (choice.FIRST, choice.LAST),
    (boxed.STRICT, boxed.LENIENT),
)
"""Sub-scores that read the same answer in two ways. Other sub-scores, such as the share of valid
JSON, measure something else."""
_READ = (Outcome.WRONG, Outcome.UNPARSED, Outcome.PARTIAL)
_TAIL = 80
"""Characters at the end of an answer that are searched for its conclusion."""
_LONGEST = 40
"""Characters of the longest target that is searched for."""


def find_stated(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if wrong or unreadable answers end with the target or state it.

    Truncated answers are left out, because they have no conclusion.
    """
    bad = [one for one in _whole(task.texts) if one.bad and one.outcome in _READ]
    shown = [one for one in bad if _states(one, task)]
    if len(shown) < STATED_SHARE * len(bad) or not matters(task, shown):
        return
    unread = sum(one.outcome == Outcome.UNPARSED for one in shown)
    told = (
        f"{len(shown)} of {len(bad)} answers that are scored as wrong end with the expected answer"
    )
    told += f"; nothing could be extracted from {unread} of them" if unread else ""
    look = (capsule_of(run, task, shown),) if any(one.shown for one in shown) else ()
    yield about(task, "extraction", told, (*_filters(run, task), *look), shown, of=len(bad))


def unreadable(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if many answers contain no answer and no other rule explains why.

    They were not truncated, and their form is not unusual.
    """
    shown = [
        one
        for one in task.texts
        if one.outcome == Outcome.UNPARSED and one.response and not _is_explained(one, task)
    ]
    if len(shown) < UNREADABLE_SHARE * len(task.texts) or not matters(task, shown):
        return
    told = (
        f"nothing could be extracted from {len(shown)} of {len(task.texts)} answers; they are"
        " complete and "
    )
    told += "do not state the expected answer: the model may be the wrong one, or damaged"
    change = (capsule_of(run, task, shown), "serve-eval smoke URL")
    yield about(task, "unreadable", told, change, shown, of=len(task.texts))


def _is_explained(one: AskedSample, task: TaskEvidence) -> bool:
    response = one.response
    assert response is not None
    other_form = marks(response.text) or goes_on(
        response.text, chat=bool(task.option("apply_chat_template"))
    )
    return (
        response.truncated
        or response.looping
        or response.stop_reason is not None
        or bool(other_form)
        or _states(one, task)
    )


def extractors(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding for each two extractors that disagree in one direction.

    Each direction of each pair of extractors is a separate test. The tests share the level.
    """
    whole = _whole(task.scored)
    known = {name for asked in whole if asked.line for name in asked.line.parts}
    pairs = [(one, other) for one, other in EXTRACTORS if {one, other} <= known]
    level = ALPHA * task.share / max(1, 2 * len(pairs))
    for one, other in pairs:
        both = [asked for asked in whole if asked.line and {one, other} <= asked.line.parts.keys()]
        better = [
            asked
            for asked in both
            if asked.line and asked.line.parts[one] < asked.line.parts[other]
        ]
        worse = [
            asked
            for asked in both
            if asked.line and asked.line.parts[one] > asked.line.parts[other]
        ]
        strict, loose = one, other
        if len(worse) > len(better):
            better, worse, strict, loose = worse, better, other, one
        apart = APART_BEHIND if loose == one else APART
        p = mcnemar(len(task.witnesses(better)), len(task.witnesses(worse))).p_exact
        if p > level or len(better) - len(worse) < apart * len(both) or not matters(task, better):
            continue
        told = f"{len(better)} of {len(both)} answers are right by {loose} and wrong by {strict}"
        told += (
            f" ({len(worse)} the other way round): the form of the answers is wrong, not their"
            " content"
        )
        yield about(task, "extractors", told, _filters(run, task, loose), better, of=len(both), p=p)


def is_stated(task: TaskEvidence, one: AskedSample) -> bool:
    """Return True for a whole answer that is scored as wrong and states the target."""
    return bool(_whole([one])) and one.outcome in _READ and _states(one, task)


def differs_by_extractor(task: TaskEvidence, one: AskedSample) -> bool:
    """Return True for a whole answer that is right by one extractor and wrong by another."""
    parts = {} if one.line is None or not _whole([one]) else one.line.parts
    return any(
        {strict, loose} <= parts.keys() and parts[strict] != parts[loose]
        for strict, loose in EXTRACTORS
    )


def _whole(asked: Sequence[AskedSample]) -> list[AskedSample]:
    return [one for one in asked if one.response is not None and not one.response.truncated]


def _filters(run: Evidence, task: TaskEvidence, loose: str = numeric.FLEXIBLE) -> tuple[str, ...]:
    if task.option("filter") is None:
        return (f"serve-eval judge --rescore {run.place_and_code}",)
    return (f"serve-eval judge --rescore {run.place_and_code} --set {task.word}.filter={loose}",)


def _states(one: AskedSample, task: TaskEvidence) -> bool:
    if one.line is None or one.response is None:
        return False
    return states(one.response.text, read_expected(task.name, one.line.target))


def states(text: str, target: str) -> bool:
    r"""Return True if a text ends with the target as a separate word, or states it.

    A text states the target by "answer is TARGET" or by \boxed{TARGET}. A single letter counts only
    if it is stated, because it occurs in too many texts.
    """
    number = is_number(target)
    target = fold(target, target) if number else target.strip()
    if not target or len(target) > _LONGEST or "\n" in target:
        return False
    text = text.replace(",", "").replace("$", "") if number else text
    word = rf"(?<![\w.]){re.escape(target)}(?!\w|\.\d)"
    marks = r"[\s*_`\"'(\[{:]*(?:\\text\{)?\(?"
    said = rf"(?i:\banswer\b(?:\s+(?:is|would be))?){marks}{word}|\\boxed\{{{marks}{word}"
    if re.search(said, text):
        return True
    return (
        not (len(target) == 1 and target.isalpha())
        and re.search(rf"(?i:{word})\W*$", text[-_TAIL:]) is not None
    )


_NUMBER = re.compile(r"[-+]?\$?(\d{1,3}(,\d{3})+|\d+)(\.\d+)?\.?")
"""A number as a target has it, with or without commas between thousands."""


def read_expected(task: str, target: str) -> str:
    """Return the expected answer of a task's target: a text as it is, other values as JSON."""
    named = name_expected(task, target)
    if not (is_mutable(task) and target.startswith("{")):
        return named
    value = msgspec.json.decode(named)
    if isinstance(value, Mapping) and "answer" in value:
        value = value["answer"]
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def is_number(text: str) -> bool:
    """Return True for one number. Commas of other texts separate words or fields."""
    return _NUMBER.fullmatch(text.strip()) is not None


def fold(text: str, expected: str) -> str:
    """Return a text in the form in which it is compared with what was expected.

    Commas and dollar signs are dropped only if a number was expected.
    """
    return numeric.normalise(text.strip()) if is_number(expected) else text.strip().lower()
