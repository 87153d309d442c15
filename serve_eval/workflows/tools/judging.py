"""Judge all passes: which errors accuse the server, where, and against what.

Three ways accuse. A share of errors is above its threshold. An error is more frequent at a higher
load, in a stream, or than in a reference, request by request. Or it is one that no model can make.
Holm's correction holds the level over all tests of each of the first two ways.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from serve_eval.evidence.agreement.self_flips import name_loads
from serve_eval.schema import ToolFinding
from serve_eval.stats.multiplicity import holm
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS, UNDECIDED
from serve_eval.workflows.tools.answers import ToolPass
from serve_eval.workflows.tools.comparing import (
    POINTS,
    PassComparison,
    compare_passes,
    find_unthinking,
)
from serve_eval.workflows.tools.thresholds import accuse_by_thresholds, point_to

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
