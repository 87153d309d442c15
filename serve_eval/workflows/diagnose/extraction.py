"""Apply rules about answers that the scorer cannot read, for example through a wrong template."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec

from serve_eval.report.summary import name_expected
from serve_eval.schema import Outcome, is_mutable
from serve_eval.scorers import boxed, choice, numeric
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.tasks import _passkey
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import (
    ALPHA,
    AskedSample,
    Finding,
    about,
    capsule_of,
    matters,
    worse,
)

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
    (_passkey.FIRST, _passkey.CONTAINED),
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


MARKED_SHARE = 0.05
"""Share of the answers from which template marks are reported. A healthy server leaves them out of
its texts."""
_MARK = re.compile(
    r"<\|[a-z_]{2,24}\|>|<\uff5c[^\uff5c>]{2,24}\uff5c>|\[/?INST\]|<</?SYS>>|</?(?:start|end)_of_turn>|</?s>|<bos>|<eos>"
)
END_SHARE, LEAST_ENDED = 0.01, 3
"""Share and number of the answers from which repeated end tokens are reported."""
_END = re.compile(
    r"<\|(?:im_end|endoftext|eot_id|end_of_text|end)\|>|<\uff5cend.of.sentence\uff5c>|<end_of_turn>|</s>|<eos>"
)
_SAID_BY = re.compile(
    r"^\s*(?:user|assistant|human|system)\s*(?::|$)", re.IGNORECASE | re.MULTILINE
)
_NEXT = re.compile(r"\n\s*(?:Question|Problem|Q)\s*:")
_NEXT_BEHIND = re.compile(r"(?:####|[Aa]nswer is|\\boxed\{)[^\n]*\n\s*(?:Question|Problem|Q)\s*:")


def template_marks(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if answers contain template marks, such as <|im_start|> or [INST]."""
    answers = task.texts
    marked = [
        (one, found) for one in answers if one.response and (found := marks(one.response.text))
    ]
    if len(marked) < MARKED_SHARE * len(answers) or not matters(task, [one for one, _ in marked]):
        return
    which = Counter(mark for _, found in marked for mark in set(found)).most_common(3)
    told = f"{len(marked)} of {len(answers)} answers contain marks of a chat template, "
    told += ", ".join(f"{mark} ({count})" for mark, count in which)
    yield about(
        task,
        "template_marks",
        told + _reason(task),
        _other_way(task),
        [one for one, _ in marked],
        of=len(answers),
    )


def find_end_tokens(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if answers contain several end tokens.

    A server ends an answer at the first one (MLPerf's test TEST06 allows one).
    """
    answers = task.texts
    shown = [one for one in answers if one.response and has_several_ends(one.response.text)]
    if len(shown) < max(LEAST_ENDED, END_SHARE * len(answers)):
        return
    told = f"{len(shown)} of {len(answers)} answers contain several end tokens: generation goes on"
    change = (
        "eos_token_id in the generation_config that is served",
        "requests without ignore_eos and min_tokens",
    )
    yield about(task, "end_tokens", f"{told} behind the first", change, shown, of=len(answers))


def run_on(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if answers continue past their end and are wrong more often than others.

    They add a turn of another speaker, or the next question.
    """
    if task.passes:
        return
    answers = task.texts
    shown = [
        one
        for one in answers
        if one.response and goes_on(one.response.text, chat=bool(_chat(task)))
    ]
    named = {one.id for one in shown}
    others = [one for one in answers if one.id not in named]
    if not matters(task, shown) or (p := worse(task, shown, others)) is None:
        return
    bad = sum(one.bad for one in others)
    told = f"{len(shown)} of {len(answers)} answers continue with an invented question or speaker: "
    told += (
        f"{sum(one.bad for one in shown)} of them are wrong, compared with {bad} of"
        f" {len(others)} others"
    )
    yield about(task, "run_on", told + _reason(task), _other_way(task), shown, of=len(answers), p=p)


def find_doubled_bos(run: Evidence, task: TaskEvidence) -> Iterator[Finding]:
    """Yield a finding if the client rendered the template and the server added special tokens too.

    Under suite_exact this is intended: the suite does it, and its references were measured that
    way.
    """
    if not task.option("add_special_tokens") or task.option("suite_exact") or task.passes:
        return
    yield Finding(
        "doubled_bos",
        (
            "serve-eval rendered the chat template, and add_special_tokens made the server add the"
            " first token again"
        ),
        change=(f"--set {task.word}.add_special_tokens=false",),
        count=len(task.asked),
        of=len(task.asked),
        lost=len(task.lost),
        task=task.name,
    )


def _chat(task: TaskEvidence) -> bool:
    return bool(task.option("apply_chat_template"))


def marks(text: str) -> list[str]:
    """Return the template marks in a text."""
    return _MARK.findall(text)


def has_several_ends(text: str) -> bool:
    """Return True if a text contains several end tokens."""
    return len(_END.findall(text)) > 1


def goes_on(text: str, *, chat: bool) -> bool:
    """Return True if a text continues with another speaker or a new question.

    In a chat, a question counts only behind a stated answer: an answer may have such a heading.
    """
    following = _NEXT_BEHIND if chat else _NEXT
    return _SAID_BY.search(text) is not None or following.search(text) is not None


def _reason(task: TaskEvidence) -> str:
    if task.option("chat_template"):
        return ": the template that serve-eval rendered does not fit the model"
    if _chat(task):
        return (
            ": the requests used chat; the server's template does not fit the model, or the model"
            " is not a chat model"
        )
    return ": the requests used completions; the model may be a chat model"


def _other_way(task: TaskEvidence) -> tuple[str, ...]:
    if task.option("chat_template"):
        return (f"--set {task.word}.tokenizer=DIR of exactly this model",)
    if _chat(task):
        return (f"--set {task.word}.tokenizer=DIR", f"--set {task.word}.apply_chat_template=false")
    return (f"--set {task.word}.apply_chat_template=true",)
