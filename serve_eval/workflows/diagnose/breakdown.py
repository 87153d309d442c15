"""Describe the lost samples of a task, whether or not a rule knows the cause.

These are facts and counts, without a test: they accuse nobody.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from serve_eval.frozen import freeze
from serve_eval.report.attribution import accusations
from serve_eval.schema import Cut, Outcome, VerdictOutcome
from serve_eval.storage import journal
from serve_eval.storage.file_names import judgements_file
from serve_eval.verdicts.validity import AT
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.extraction import fold, read_expected, states
from serve_eval.workflows.diagnose.finding import (
    OTHER_MODEL,
    AskedSample,
    Finding,
    capsule_of,
    ids,
    show_first,
)
from serve_eval.workflows.diagnose.slice_data import Data, PairedScores, pair_with_reference

EXAMPLES, MOST_MESSAGES = 3, 2
LONGEST = 40
"""Characters of an answer in an example, and of the longest one that is compared by edits."""
WORDS = {
    Outcome.WRONG: "wrong",
    Outcome.PARTIAL: "partly right",
    Outcome.UNPARSED: "unreadable",
    Outcome.EMPTY: "empty",
    Outcome.REASONING_ONLY: "thoughts only",
    Outcome.REFUSED: "refused",
}


@freeze
class LostExample:
    """A lost sample that may be shown: what was read from its answer, and what was expected."""

    id: str
    answer: str
    target: str


@freeze
class Breakdown:
    """The lost samples of a task by kind.

    `reference` is the reference's value. `near` wrong answers are one edit away from the expected
    one, and `unread` ones state it although it was not read. `judge_errors` are the reasons for
    which judges gave no verdict, with their counts. `next` are commands.
    """

    reference: float | None
    kinds: dict[str, int]
    cut: Mapping[Cut, int]
    near: int
    unread: int
    examples: tuple[LostExample, ...]
    judge_errors: tuple[str, ...]
    next: tuple[str, ...]


def break_down(
    run: Evidence, task: TaskEvidence, other: Evidence | None = None
) -> Breakdown | None:
    """Return the breakdown of a task that is not green, or None if it is or lost nothing.

    Of a comparison, whose other side is `other`, only the side that lost more has one.
    """
    if task.passes or not (task.lost or task.unscored):
        return None
    theirs = [] if other is None else [one for one in other.tasks if one.name == task.name]
    if any(len(one.lost) >= len(task.lost) for one in theirs):
        return None
    good = name_good(other)
    bad = [one for one in task.lost if one.response is not None]
    kinds = Counter(WORDS.get(one.line.outcome, "wrong") for one in bad if one.line is not None)
    if missing := len(task.missing):
        kinds["unanswered"] = missing
    if task.unscored:
        kinds["not scored"] = task.unscored
    shown = sorted((one for one in bad if one.shown and one.line), key=_rank)
    return Breakdown(
        reference=_reference(task),
        kinds=dict(kinds.most_common()),
        cut=dict(Counter(one.line.cut for one in bad if one.line and one.line.cut)),
        near=sum(is_near(one, task.name) for one in bad),
        unread=sum(is_unread(one, task.name) for one in bad),
        examples=tuple(_show(one, task.name) for one in shown[:EXAMPLES]),
        judge_errors=tuple(_judge_errors(run, task)),
        next=tuple(_next(run, task, shown, good)),
    )


def _reference(task: TaskEvidence) -> float | None:
    reference = None if task.report is None else task.report.reference
    return None if reference is None else reference.value


def is_near(one: AskedSample, task: str) -> bool:
    """Return True if the answer that was read is one edit away from the expected one."""
    if one.line is None or one.line.answer is None:
        return False
    expected = read_expected(task, one.line.target)
    answer, target = fold(one.line.answer, expected), fold(expected, expected)
    longest = max(len(answer), len(target))
    return 1 < longest <= LONGEST and answer != target and is_one_edit(answer, target)


def is_unread(one: AskedSample, task: str) -> bool:
    """Return True if the text states the expected answer, but another one or none was read."""
    if one.line is None or one.response is None:
        return False
    return states(one.response.text, read_expected(task, one.line.target))


def is_one_edit(a: str, b: str) -> bool:
    """Return True if one character added, removed or changed, or two swapped, turn a into b."""
    if len(a) > len(b):
        a, b = b, a
    if len(b) - len(a) > 1 or a == b:
        return False
    i = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))
    if len(a) < len(b):
        return a[i:] == b[i + 1 :]
    return a[i + 1 :] == b[i + 1 :] or (
        a[i : i + 2] == b[i : i + 2][::-1] and a[i + 2 :] == b[i + 2 :]
    )


def _rank(one: AskedSample) -> int:
    """Return a place that puts wrong answers with something read first."""
    return 0 if one.line is not None and one.line.answer else 1


def _show(one: AskedSample, task: str) -> LostExample:
    assert one.line is not None
    text = "" if one.response is None else one.response.text
    answer = one.line.answer or " ".join(text.split())
    target = read_expected(task, one.line.target)
    return LostExample(id=one.id, answer=_shorten(answer), target=_shorten(target))


def _shorten(text: str) -> str:
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 3]}..."


def _judge_errors(run: Evidence, task: TaskEvidence) -> Iterator[str]:
    for judge in () if task.report is None else task.report.judges:
        told = {"failed": judge.failed, "unreadable": judge.unreadable, "missing": judge.missing}
        counts = ", ".join(f"{count} {name}" for name, count in told.items() if count)
        if counts:
            yield f"judge {judge.name}: {counts} of {judge.planned} judgements"
    file = judgements_file(run.folder, task.name)
    messages = Counter(
        f"{one.failure.kind}: {one.failure.message}"
        for one in (journal.read(file) if file.exists() else ())
        if one.failure is not None
    )
    for message, count in messages.most_common(MOST_MESSAGES):
        yield f"judges: {count} times {run.mask(message)}"


def _next(run: Evidence, task: TaskEvidence, shown: list[AskedSample], good: str) -> Iterator[str]:
    if shown:
        yield show_first(run, task, shown)
        yield capsule_of(run, task, shown)
    if not task.lost:  # only answers without a score, for which no server is to blame
        yield f"serve-eval show {run.place} --failed"
        return
    yield describe_verify(run, good)
    if run.several_workers:
        yield run.attribute


def name_good(other: Evidence | None) -> str:
    """Return the address of the other side for a command, or GOOD if there is none any more."""
    return other.target if other is not None and other.may_answer else "GOOD"


def describe_verify(run: Evidence, good: str = "GOOD") -> str:
    """Return the command that compares the run's endpoint with one that is known to be good.

    Servers that the run started itself are gone, so that the one that starts them comes first.
    """
    if run.may_answer:
        return f"serve-eval verify {good} {run.target}"
    return f"{run.serve}; then, with the URL that it prints: serve-eval verify {good} URL"


def describe_kinds(found: Breakdown) -> str:
    """Return the lost samples by kind. Pure."""
    kinds = ", ".join(f"{count} {kind}" for kind, count in found.kinds.items())
    by = ", ".join(f"{n} {AT[kind]}" for kind, n in found.cut.items())
    return f"{kinds}; of these were cut: {by}" if by else kinds


def describe_misses(found: Breakdown) -> Iterator[str]:
    """Yield how many answers are nearly right, or right but not read. Pure."""
    if found.near:
        yield f"{found.near} wrong answers are one character away from the expected one"
    if found.unread:
        yield f"{found.unread} state the expected answer, but it was not read"


RULE = "even_loss"
LIKELIEST = "weights, precision, chat template or sampling"
"""The kinds of fault that lower the score of all requests alike."""
TRANSFER = "the transfer of KV caches between its context and generation servers"
"""A further kind, of a deployment with such servers: every request passes through it."""
OTHER_LAUNCH = "other launcher options than the reference's"
"""The likeliest cause of an even loss where they differ."""


def find_even_loss(
    run: Evidence, found: Iterable[Finding], data: Data, *, differs: bool
) -> Iterator[Finding]:
    """Yield a finding for each task that failed and of which no finding explains an answer.

    `differs`: the launcher options differ from those of the reference, which is named first.
    """
    about = {one.task for one in found if not one.is_remark}
    for task in run.tasks:
        if task.outcome is VerdictOutcome.FAIL and not about & {None, task.name}:
            yield from _describe(run, task, data, differs)


def _describe(run: Evidence, task: TaskEvidence, data: Data, differs: bool) -> Iterator[Finding]:
    if task.report is None or task.report.reference is None or not task.lost:
        return
    blamed = task.report.attribution
    if blamed is not None and any(accusations(blamed)):  # the report names the cause
        return
    scores = pair_with_reference(task, data)
    another = scores is not None and _is_like_another(scores)
    again = ["rule out the difference above first"] if differs else []
    likeliest = f"{LIKELIEST} that differ from the reference's"
    if run.has_legs:
        likeliest += f", or {TRANSFER}"
        again.append(run.attribute)
    yield Finding(
        RULE,
        (
            "the loss is even: no part of the prompts, servers or answers is proven to lose more"
            f" than the others; likeliest are {likeliest}" + (f"; {OTHER_MODEL}" if another else "")
        ),
        change=(*again, describe_verify(run)),
        count=len(task.lost),
        of=len(task.asked),
        task=task.name,
        samples=ids(task.lost),
        lost=len(task.lost),
        rather=LIKELIEST,
        leads=not (differs or another),
    )


def _is_like_another(scores: PairedScores) -> bool:
    from serve_eval.stats.losses import is_like_another

    return is_like_another(*scores.rights())
