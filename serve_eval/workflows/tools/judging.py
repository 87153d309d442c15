"""Judge all passes: which errors accuse the server, and which only deserve a remark.

Three ways accuse. A share of errors is above its threshold. An error is more frequent at a higher
load, in a stream, or than in a reference, request by request. Or it is one that no model can make.
Holm's correction holds the level over all tests of each of the first two ways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from serve_eval.evidence.self_flips import name_loads
from serve_eval.schema import ToolFinding
from serve_eval.scorers._served_call import OF_SERVER, POINTS_TO, CallFault
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.repeats import instability
from serve_eval.stats.sign_tests import binomial_tail
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS, UNDECIDED
from serve_eval.workflows.tools.answers import (
    POINTS,
    CheckedAnswer,
    PassComparison,
    ToolPass,
    compare_passes,
    count_unequal,
    find_unthinking,
    measure_trigger,
)

ALPHA = 0.01
"""Chance of accusing a sound server: half of it for thresholds, half for comparisons."""
FEWEST = 30
"""Least number of scored requests in a pass for a result other than inconclusive."""


def judge_passes(
    passes: Sequence[ToolPass], reference: Sequence[ToolPass], limits: Mapping[str, float]
) -> tuple[ToolFinding, ...]:
    """Return a finding for each kind of error that accuses the server, the most certain first."""
    found = [
        ToolFinding(
            fault=test.name,
            cells=(test.cell,),
            where="",
            against="threshold",
            count=test.errors,
            scored=test.scored,
            p=p,
            points_to=point_to(test.name),
            examples=test.examples,
        )
        for test, p in accuse_by_thresholds(passes, limits, ALPHA / 2)
    ]
    for test, p in _accuse_by_comparisons([*_list_comparisons(passes, reference)]):
        found.append(
            ToolFinding(
                fault=test.name,
                cells=(test.cell,),
                where="",
                against=test.against,
                count=test.worse,
                scored=test.paired,
                p=p,
                points_to=POINTS.get(test.name) or point_to(test.name),
                examples=test.examples,
            )
        )
    return _merge(found, passes)


def _list_comparisons(
    passes: Sequence[ToolPass], reference: Sequence[ToolPass]
) -> Iterator[PassComparison]:
    known = {(one.form, one.load): one for one in passes}
    lowest = min(one.load for one in passes)
    earlier = {(one.form, one.load): one for one in reference}
    for (form, load), one in known.items():
        base = known.get((form, lowest))
        if load > lowest and base is not None:
            yield from compare_passes(base, one, "lowest load")
        if form == "stream" and (whole := known.get(("whole", load))) is not None:
            yield from compare_passes(whole, one, "whole answer")
        if (before := earlier.get((form, load))) is not None:
            yield from compare_passes(before, one, "reference")
        if (unthinking := find_unthinking(one)) is not None:
            yield unthinking


def _accuse_by_comparisons(
    tests: Sequence[PassComparison],
) -> list[tuple[PassComparison, float | None]]:
    """Return the comparisons that accuse, with their corrected p-values.

    A test that cannot reach the level, with so few answers that changed at all, is left out of the
    correction (Tarone 1990): the number of changes says nothing about their direction.
    """
    certain = [(test, None) for test in tests if test.p is None and test.worse]
    able = [
        test
        for test in tests
        if test.p is not None and 0.5 ** (test.worse + test.better - 1) <= ALPHA / 2
    ]
    corrected = holm([test.p or 0.0 for test in able])
    proved = [
        (test, p)
        for test, p in zip(able, corrected, strict=True)
        if p <= ALPHA / 2 and test.worse > test.better
    ]
    return [*certain, *proved]


def _merge(found: Sequence[ToolFinding], passes: Sequence[ToolPass]) -> tuple[ToolFinding, ...]:
    """Return one finding per kind of error: its most certain one, with all places."""
    by_fault: dict[str, list[ToolFinding]] = {}
    for one in found:
        by_fault.setdefault(one.fault, []).append(one)
    merged = []
    for several in by_fault.values():
        first = min(several, key=lambda one: (one.p or 0.0, -one.count))
        cells = tuple(one.name for one in passes if any(one.name in f.cells for f in several))
        merged.append(replace(first, cells=cells, where=_say_where(cells, passes)))
    return tuple(sorted(merged, key=lambda one: (one.p or 0.0, -len(one.cells), -one.count)))


def _say_where(cells: Sequence[str], passes: Sequence[ToolPass]) -> str:
    """Return where an error is: at which loads, in which form."""
    if len(cells) == len(passes):
        return "everywhere"
    said = {}
    for form in ("whole", "stream"):
        here = [one for one in passes if one.form == form]
        bad = [one.load for one in here if one.name in cells]
        if bad:
            said[form] = name_loads([one.load for one in here], bad, what="").strip()
    if len(said) == 2 and said["whole"] == said["stream"]:
        return said["whole"]
    names = {"whole": "in whole answers", "stream": "in streams"}
    only = {
        form: names[form] if len([one for one in passes if one.form == form]) == 1 else ""
        for form in said
    }
    return ", ".join(
        only[form] or (names[form] if words == "at all loads" else f"{names[form]} {words}")
        for form, words in said.items()
    )


def find_exit_code(passes: Sequence[ToolPass], *, failed: bool) -> int:
    """Return 1 if anything failed, 5 without any answer, 3 with too few in a pass, else 0.

    An answer that was cut shows hardly anything, so that most of them must be whole.
    """
    if failed:
        return FAIL
    if not any(one.answers for one in passes):
        return NOTHING_SCORED
    few = any(len(one.answers) < FEWEST or 2 * one.cut > len(one.answers) for one in passes)
    return UNDECIDED if few else PASS


THRESHOLDS: Mapping[str, float] = {
    CallFault.MARKUP: 0.01,
    CallFault.BROKEN_TEXT: 0.005,
    CallFault.INVALID_JSON: 0.02,
    CallFault.UNKNOWN_NAME: 0.02,
    CallFault.SCHEMA: 0.10,
    CallFault.MISSED: 0.20,
    CallFault.UNWANTED: 0.20,
    CallFault.EMPTY: 0.05,
    CallFault.VALUES: 0.20,
}
"""Largest share of answers with an error that a model may make, over all kinds of requests."""
ENFORCED_SHARE = 0.02
"""Largest share of answers that break what the server must enforce, whatever the model says."""
_CHOICE = (CallFault.MISSED, CallFault.UNWANTED, CallFault.UNKNOWN_NAME)
_FORM = (CallFault.INVALID_JSON, CallFault.SCHEMA, CallFault.UNWANTED)
ENFORCED: Mapping[str, tuple[CallFault, ...]] = {
    "required": _CHOICE,
    "none": _CHOICE,
    "named": _CHOICE,
    **dict.fromkeys(
        ("json_object", "json_schema", "json_trtllm", "regex", "ebnf", "structural_tag"), _FORM
    ),
}
"""The part of a request that the server must enforce, by kind of request."""


class ThresholdTest(NamedTuple):
    """The errors of one kind in one pass. Without a `p`, one error is enough."""

    name: str
    cell: str
    errors: int
    scored: int
    p: float | None
    examples: tuple[tuple[str, str], ...]


def accuse_by_thresholds(
    passes: Sequence[ToolPass], limits: Mapping[str, float], alpha: float
) -> list[tuple[ThresholdTest, float | None]]:
    """Return the tests that accuse, with their corrected p-values."""
    tests = [test for one in passes for test in _test_pass(one, {**THRESHOLDS, **limits})]
    certain = [(test, None) for test in tests if test.p is None and test.errors]
    open_ones = [test for test in tests if test.p is not None]
    corrected = holm([test.p or 0.0 for test in open_ones])
    proved = [(test, p) for test, p in zip(open_ones, corrected, strict=True) if p <= alpha]
    return [*certain, *proved]


def _test_pass(one: ToolPass, limits: Mapping[str, float]) -> Iterator[ThresholdTest]:
    everything = dict(one.answers)
    for fault in (*OF_SERVER, *limits):
        limit = None if fault in OF_SERVER and fault not in limits else limits[fault]
        name = CallFault(fault).value
        yield _test(one, name, everything, (CallFault(fault),), limit)
    for kind, faults in ENFORCED.items():
        here = {prompt: a for prompt, a in everything.items() if a.kind == kind}
        if here:
            yield _test(one, f"{kind} not enforced", here, faults, ENFORCED_SHARE)


def _test(
    one: ToolPass,
    name: str,
    answers: Mapping[str, CheckedAnswer],
    faults: tuple[CallFault, ...],
    limit: float | None,
) -> ThresholdTest:
    bad = [prompt for prompt, a in answers.items() if set(faults) & set(a.faults)]
    p = None if limit is None else binomial_tail(len(bad), len(answers), limit)
    examples = tuple((prompt, answers[prompt].said) for prompt in bad[:2])
    return ThresholdTest(name, one.name, len(bad), len(answers), p, examples)


def point_to(name: str) -> str:
    """Return the part of a server that an error, or a field that is not enforced, points to."""
    kind = name.removesuffix(" not enforced")
    if kind in ENFORCED:
        where = "tool_choice" if ENFORCED[kind] is _CHOICE else "guided decoding"
        return f"{where}: the server accepts the field and does not apply it"
    return POINTS_TO[CallFault(name)]


MOST = 300
"""Characters of a server's message at most."""


def list_remarks(
    passes: Sequence[ToolPass], reference: Sequence[ToolPass], lacking: Sequence[str]
) -> Iterator[str]:
    """Yield the remarks, the most important first."""
    for name in lacking:
        yield f"the server does not meet --require {name}"
    for one in passes:
        if one.failed:
            yield f"{one.name}: {one.failed} requests failed; they count as neither right nor wrong"
            yield from (f"{one.name}: {line}" for line in _say_failures(one))
        most = max((part.max_in_flight for part in one.report.loads), default=one.load)
        if most < one.load:
            yield f"{one.name}: at most {most} requests were in flight"
        silent = sum(not answer.usage.completion_tokens for answer in one.answers.values())
        if silent:
            yield f"{one.name}: {silent} of {len(one.answers)} answers have no token counts"
    yield from _compare_forms(passes)
    yield from _say_cochran(passes)
    yield from _compare_triggers(passes, reference)


def _say_failures(one: ToolPass) -> Iterator[str]:
    """Yield the most frequent failure, in the words of the server."""
    said = Counter(" ".join(failure.message.split()) for failure in one.failures.values())
    for message, count in said.most_common(1):
        yield f"{count} of them: {message[:MOST]}"


def _compare_forms(passes: Sequence[ToolPass]) -> Iterator[str]:
    """Yield how many streamed answers differ from the whole ones."""
    known = {(one.form, one.load): one.answers for one in passes}
    for form, load in known:
        if form == "stream" and ("whole", load) in known:
            unequal, both = count_unequal(known["whole", load], known["stream", load])
            yield f"{load} in flight: {unequal} of {both} streamed answers differ from the whole"


def _say_cochran(passes: Sequence[ToolPass]) -> Iterator[str]:
    """Yield Cochran's Q of the answers without an error, over the loads of each form."""
    for form in ("whole", "stream"):
        here = [one.answers for one in passes if one.form == form]
        prompts = [p for p in here[0] if all(p in answers for answers in here)] if here else []
        if len(here) < 2 or not prompts:
            continue
        found = instability([[float(not a[p].faults) for p in prompts] for a in here])
        if found.cochran_q is not None and found.p is not None:
            yield (
                f"Cochran's Q over the loads, {form}: {found.cochran_q:.1f}, {found.df} degrees of"
                f" freedom, p = {found.p:.1g}"
            )


def _compare_triggers(passes: Sequence[ToolPass], reference: Sequence[ToolPass]) -> Iterator[str]:
    earlier = {(one.form, one.load): one.answers for one in reference}
    for one in passes:
        if (one.form, one.load) in earlier:
            found = measure_trigger(one.answers, earlier[one.form, one.load])
            yield (
                f"{one.name}: calls against the reference: precision {found.precision:.3f}, recall"
                f" {found.recall:.3f}, F1 {found.f1:.3f}"
            )
