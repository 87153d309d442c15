"""Read the answers of each pass, sum them up, and compare passes request by request.

Each comparison counts the answers that got worse and those that got better, and tests the two
numbers exactly: on a sound server another batch changes answers in both directions alike.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import NamedTuple

from serve_eval.evidence.answer_pairs import read_failures, read_responses, read_task
from serve_eval.frozen import freeze
from serve_eval.schema import (
    Failure,
    Report,
    Response,
    Sample,
    ToolAgainst,
    ToolCell,
    ToolForm,
    Usage,
)
from serve_eval.scorers._served_call import (
    CallFault,
    TriggerCounts,
    count_trigger,
    find_faults,
    read_expectation,
)
from serve_eval.stats.intervals import INTERVAL_ALPHA, wilson
from serve_eval.stats.sign_tests import mcnemar
from serve_eval.storage.report_file import read_report
from serve_eval.tasks.tool_calls import KIND

TASK = "tool_calls"


@freeze
class CheckedAnswer:
    """One answer: its request's kind, its errors, its parts, and its token counts.

    `parts` are reasoning, text, and each call's name and arguments, as they came; `meant` has the
    arguments as JSON in one form, since servers write and escape it in several. `chose`: the model
    may choose whether to call; `wanted`: the label says that it must.
    """

    kind: str
    faults: tuple[CallFault, ...]
    parts: tuple[str, ...]
    meant: tuple[str, ...]
    called: bool
    reasoned: bool
    chose: bool
    wanted: bool
    usage: Usage

    @property
    def said(self) -> str:
        """The answer for a reader, without its reasoning."""
        return " ".join(filter(None, self.parts[1:]))


Answers = Mapping[str, CheckedAnswer]
"""The answers of a pass that have a score, by sample."""


@freeze
class ToolPass:
    """A finished pass with its answers."""

    form: ToolForm
    load: int
    report: Report
    answers: Answers
    failures: Mapping[str, Failure] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.form} at {self.load}"

    @property
    def failed(self) -> int:
        """Number of requests without an answer."""
        return self.report.tasks[0].result.planned - len(self.answers)

    @property
    def cut(self) -> int:
        """Number of answers that were cut."""
        return sum(CallFault.CUT in answer.faults for answer in self.answers.values())


def read_pass(folder: Path, form: ToolForm, load: int, samples: Iterable[Sample]) -> ToolPass:
    """Return a finished pass. Raises RunFolderError for files that are missing or damaged."""
    report = read_report(folder)
    told = read_task(folder, report, TASK)
    known = {sample.id: sample for sample in samples}
    answers: dict[str, CheckedAnswer] = {}
    for prompt, response in read_responses(told):
        if prompt in told.lines[0] and prompt in known:
            answers.setdefault(prompt, check_answer(known[prompt], response))
    return ToolPass(
        form=form, load=load, report=report, answers=answers, failures=read_failures(told)
    )


def check_answer(sample: Sample, response: Response) -> CheckedAnswer:
    """Return an answer with its errors."""
    expected = read_expectation(sample)
    shown = (response.reasoning or "", response.text)
    calls = [part for call in response.tool_calls for part in (call.name, call.arguments)]
    meant = [
        part
        for call in response.tool_calls
        for part in (call.name, write_in_one_form(call.arguments))
    ]
    return CheckedAnswer(
        kind=sample.metadata[KIND],
        faults=find_faults(sample, response),
        parts=(*shown, *calls),
        meant=(*shown, *meant),
        called=bool(response.tool_calls),
        reasoned=bool((response.reasoning or "").strip()),
        chose=expected.auto,
        wanted=expected.wanted == "call",
        usage=response.usage,
    )


def write_in_one_form(arguments: str) -> str:
    """Return JSON with sorted keys, without space and escapes; any other text as it is."""
    try:
        return json.dumps(
            json.loads(arguments), sort_keys=True, ensure_ascii=False, separators=(",", ":")
        )
    except (ValueError, RecursionError):
        return arguments


def sum_up(one: ToolPass) -> ToolCell:
    """Return the figures of a pass."""
    answers = one.answers.values()
    sound = sum(not answer.faults for answer in answers)
    kinds: dict[str, list[int]] = {}
    for answer in answers:
        counts = kinds.setdefault(answer.kind, [0, 0])
        counts[0] += not answer.faults
        counts[1] += 1
    trigger, chose = measure_trigger(one.answers), any(answer.chose for answer in answers)
    interval = wilson(sound, len(answers), INTERVAL_ALPHA) if answers else None
    return ToolCell(
        form=one.form,
        load=one.load,
        scored=len(answers),
        sound=sound,
        failed=one.failed,
        interval=interval,
        faults=Counter(fault.value for answer in answers for fault in answer.faults),
        kinds={kind: (counts[0], counts[1]) for kind, counts in kinds.items()},
        precision=trigger.precision if chose else None,
        recall=trigger.recall if chose else None,
        f1=trigger.f1 if chose else None,
        in_flight=max((load.max_in_flight for load in one.report.loads), default=0),
        prompt_tokens=sum(answer.usage.prompt_tokens for answer in answers),
        completion_tokens=sum(answer.usage.completion_tokens for answer in answers),
        unreported=sum(not answer.usage.completion_tokens for answer in answers),
        reasoned=sum(answer.reasoned for answer in answers),
        wall_s=math.fsum(load.wall_s for load in one.report.loads),
    )


def measure_trigger(answers: Answers, reference: Answers | None = None) -> TriggerCounts:
    """Return how often a call was made where one was right, by the labels or by a reference."""
    free = {prompt: answer for prompt, answer in answers.items() if answer.chose}
    if reference is None:
        return count_trigger((answer.wanted, answer.called) for answer in free.values())
    return count_trigger(
        (reference[prompt].called, answer.called)
        for prompt, answer in free.items()
        if prompt in reference
    )


LOST_PART, LOST_REASONING = "lost part", "lost reasoning"
PROMPT_COUNT, ANSWER_COUNT = "prompt tokens differ", "answer tokens differ"
SHARE_REASONED, FEWEST = 0.9, 10
"""Share of the answers without a call that have reasoning, and the fewest answers, from which
answers with a call that never have any accuse."""
SLACK_TOKENS = 2
"""Tokens by which counts of equal answers may differ: some servers count the end."""
POINTS: Mapping[str, str] = {
    LOST_PART: "the stream ends too early: its last piece is dropped, or a parser holds it back",
    LOST_REASONING: "the reasoning parser loses the thoughts before a call or in a stream",
    PROMPT_COUNT: "usage: the same request has another number of prompt tokens",
    ANSWER_COUNT: "usage: the same answer has another number of tokens",
}


class PassComparison(NamedTuple):
    """Answers that got worse and better from one pass to another. Without a `p`, one is enough."""

    name: str
    cell: str
    against: ToolAgainst
    worse: int
    better: int
    paired: int
    p: float | None
    examples: tuple[tuple[str, str], ...]


Sides = Sequence[tuple[str, CheckedAnswer, CheckedAnswer]]
"""The requests that both passes answered, with both answers."""


def compare_passes(
    base: ToolPass, other: ToolPass, against: ToolAgainst
) -> Iterator[PassComparison]:
    """Yield the comparisons of a pass with one that it should equal."""
    sides = [
        (prompt, base.answers[prompt], answer)
        for prompt, answer in other.answers.items()
        if prompt in base.answers
    ]
    for fault in CallFault:
        worse = [s for s in sides if fault in s[2].faults and fault not in s[1].faults]
        better = [s for s in sides if fault in s[1].faults and fault not in s[2].faults]
        yield _compare(fault.value, other, against, worse, better, len(sides))
    worse = [s for s in sides if s[1].reasoned and not s[2].reasoned]
    better = [s for s in sides if s[2].reasoned and not s[1].reasoned]
    yield _compare(LOST_REASONING, other, against, worse, better, len(sides))
    if against in ("whole answer", "lowest load"):
        worse = [s for s in sides if is_shorter(s[2], s[1])]
        better = [s for s in sides if is_shorter(s[1], s[2])]
        yield _compare(LOST_PART, other, against, worse, better, len(sides))
    yield _count_differences(PROMPT_COUNT, other, against, _differ_in_prompts(sides), len(sides))
    if against != "reference":  # Engines count the end of an answer differently.
        differing = [
            s
            for s in sides
            if s[1].meant == s[2].meant
            and s[1].usage.completion_tokens
            and s[2].usage.completion_tokens
            and abs(s[1].usage.shown_tokens - s[2].usage.shown_tokens) > SLACK_TOKENS
        ]
        yield _count_differences(ANSWER_COUNT, other, against, differing, len(sides))


def is_shorter(one: CheckedAnswer, other: CheckedAnswer) -> bool:
    """Return True if an answer lacks the end of one or more parts of another, and is else equal."""
    if one.meant == other.meant or len(one.parts) > len(other.parts):
        return False
    padded = one.parts + ("",) * (len(other.parts) - len(one.parts))
    return all(b.startswith(a) for a, b in zip(padded, other.parts, strict=True))


def find_unthinking(one: ToolPass) -> PassComparison | None:
    """Return that a pass shows thoughts before texts and never before calls, if it does."""
    free = {prompt: answer for prompt, answer in one.answers.items() if answer.chose}
    called = {prompt: answer for prompt, answer in free.items() if answer.called}
    others = [answer for prompt, answer in free.items() if prompt not in called]
    if min(len(called), len(others)) < FEWEST or any(a.reasoned for a in called.values()):
        return None
    if sum(answer.reasoned for answer in others) < SHARE_REASONED * len(others):
        return None
    examples = tuple((prompt, answer.said) for prompt, answer in list(called.items())[:2])
    count = len(called)
    return PassComparison(LOST_REASONING, one.name, "itself", count, 0, count, None, examples)


def _compare(
    name: str, other: ToolPass, against: ToolAgainst, worse: Sides, better: Sides, paired: int
) -> PassComparison:
    p = mcnemar(len(worse), len(better)).p_exact_two_sided
    examples = tuple((prompt, answer.said) for prompt, _, answer in worse[:2])
    counts = (len(worse), len(better), paired)
    return PassComparison(name, other.name, against, *counts, p, examples)


def _count_differences(
    name: str, other: ToolPass, against: ToolAgainst, found: Sides, paired: int
) -> PassComparison:
    examples = tuple(
        (prompt, f"{_count(before)}, then {_count(after)}") for prompt, before, after in found[:2]
    )
    return PassComparison(name, other.name, against, len(found), 0, paired, None, examples)


def _count(answer: CheckedAnswer) -> str:
    hidden = answer.usage.reasoning_tokens
    thoughts = f" ({hidden} of thoughts)" if hidden else ""
    return f"{answer.usage.prompt_tokens} + {answer.usage.completion_tokens} tokens{thoughts}"


def _differ_in_prompts(sides: Sides) -> Sides:
    return [
        s
        for s in sides
        if s[1].usage.prompt_tokens
        and s[2].usage.prompt_tokens
        and s[1].usage.prompt_tokens != s[2].usage.prompt_tokens
    ]


def count_unequal(one: Answers, other: Answers) -> tuple[int, int]:
    """Return how many answers of two passes differ in any part, of how many that both have.

    Arguments are compared as JSON.
    """
    both = [prompt for prompt in one if prompt in other]
    return sum(one[prompt].meant != other[prompt].meant for prompt in both), len(both)
