"""Compare two endpoints at several numbers of requests in flight, here called loads.

OUT/<load> is an ordinary comparison, and OUT/load_comparison.json the result. The order of the
loads is random, so that a change over time is not taken for load. Both endpoints are asked at the
same time at each load, so that a disturbance of the machine hits both.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.errors import PlanError
from serve_eval.evaluation.run_session import (
    Stopwatch,
    describe_old_answers,
    find_stated_time,
    ignore,
    write_notice,
    write_warning,
)
from serve_eval.evidence.self_flips import NOTHING, name_loads
from serve_eval.report.ci_result import CiCase, CiSuite, describe_drop
from serve_eval.report.document import Conclusion, Depth, Document, Statement, name_state
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.run.conclusions import choose_state, name_old
from serve_eval.report.summary.headline import ORDER
from serve_eval.report.task_line import split_change
from serve_eval.schema import (
    Comparison,
    LoadComparison,
    Progress,
    TaskAtLoad,
    Verdict,
    VerdictOutcome,
)
from serve_eval.shell_words import quote_path
from serve_eval.stats.multiplicity import holm
from serve_eval.storage.story_files import COMPARE_AT_LOADS
from serve_eval.verdicts.exit_code import code_of, worst
from serve_eval.workflows.compare.compare import CompareRules, CompareSide, compare

ALPHA = 0.05
"""Probability that a sound B is called worse at any load, under the rules CORRECTED."""
CORRECTED = ("paired", "anchors")
"""The rules whose p-values are corrected over all loads and tasks. The others exclude a drop or
count differences, which needs no correction."""


async def compare_at_loads(
    a: CompareSide,
    b: CompareSide,
    rules: CompareRules,
    out_dir: Path,
    loads: Sequence[int],
    *,
    show_flips: int,
    one_after_the_other: bool = False,
    strict: bool = False,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None] = ignore,
) -> LoadComparison:
    """Compare at each load what is not compared yet, and write load_comparison.json.

    Raises PlanError for a finished run as a side, which has one load, and what `compare` raises.
    """
    if a.folder is not None or b.folder is not None:
        raise PlanError(
            "a finished run was asked at one load",
            hint="Name two endpoints or plans, or give one number with --concurrency.",
        )
    clock = Stopwatch()
    COMPARE_AT_LOADS.drop(out_dir)
    order = shuffle_loads(loads, a.plan.seed)
    found: dict[int, Comparison] = {}
    for load in order:
        notify(f"{load} in flight:")
        found[load] = await compare(
            _at_load(a, load),
            _at_load(b, load),
            rules,
            out_dir / str(load),
            show_flips=show_flips,
            one_after_the_other=one_after_the_other,
            progress=progress,
            environ=environ,
            notify=notify,
        )
    tasks = correct_loads(
        [one for load in sorted(found) for one in list_tasks(load, found[load])],
        corrected=rules.rule.name in CORRECTED,
    )
    result = LoadComparison(
        schema_version=COMPARE_AT_LOADS.version,
        rule=rules.rule,
        order=order,
        tasks=tuple(tasks),
        words=name_tasks(tasks),
        exit_code=worst([code_of(one.outcome) for one in tasks], strict=strict),
        started_at=clock.started_at,
        wall_s=clock.wall_s,
        warnings=tuple(list_old_loads(found)),
    )
    COMPARE_AT_LOADS.write(out_dir, result)
    return result


def list_old_loads(found: Mapping[int, Comparison]) -> list[str]:
    """Return a warning if nothing was asked at any load, or one for each of some loads."""
    times = {load: find_stated_time(one.warnings) for load, one in sorted(found.items())}
    if all(times.values()):
        return [write_warning(max(times.values()), "name another folder")]
    return [f"at {load} in flight {write_notice(at)}" for load, at in times.items() if at]


def shuffle_loads(loads: Sequence[int], seed: int) -> tuple[int, ...]:
    """Return the loads in a random order, the same for the same seed."""
    order = sorted(set(loads))
    random.Random(f"{seed}:compared loads").shuffle(order)
    return tuple(order)


def _at_load(side: CompareSide, load: int) -> CompareSide:
    limits = replace(side.plan.limits, concurrency=load)
    return replace(side, plan=replace(side.plan, limits=limits))


def list_tasks(load: int, comparison: Comparison) -> list[TaskAtLoad]:
    """Return what a comparison found at one load."""
    return [
        TaskAtLoad(
            load=load,
            task=one.task,
            a=one.a.value,
            b=one.b.value,
            lost=one.worse,
            won=one.better,
            failed=(one.a.failed, one.b.failed),
            outcome=one.verdict.outcome,
            p=_find_p(one.verdict),
        )
        for one in comparison.tasks
    ]


def _find_p(verdict: Verdict) -> float | None:
    """Return the p-value of a verdict's rule; None if it has none."""
    paired = verdict.paired
    if paired is None:
        return None
    anchors = paired.anchors if verdict.rule == "anchors" else None
    return paired.p if anchors is None else anchors.p


def correct_loads(tasks: Sequence[TaskAtLoad], *, corrected: bool) -> list[TaskAtLoad]:
    """Return the tasks with corrected p-values; a FAIL that is not proven any more is undecided."""
    known = [one.p for one in tasks if one.p is not None]
    adjusted = iter(holm(known) if corrected else ())
    found = []
    for one in tasks:
        p = next(adjusted) if corrected and one.p is not None else None
        unproven = one.outcome is VerdictOutcome.FAIL and p is not None and p > ALPHA
        outcome = VerdictOutcome.INCONCLUSIVE if unproven else one.outcome
        found.append(replace(one, p_holm=p, outcome=outcome))
    return found


def name_tasks(tasks: Sequence[TaskAtLoad]) -> dict[str, str]:
    """Return for each task at which loads B is worse."""
    found = {}
    for task in dict.fromkeys(one.task for one in tasks):
        ours = [one for one in tasks if one.task == task]
        bad = [one.load for one in ours if one.outcome is VerdictOutcome.FAIL]
        unclear = [one.load for one in ours if one.outcome is VerdictOutcome.INCONCLUSIVE]
        words = name_loads([one.load for one in ours], bad, what="B is worse", unclear=unclear)
        if words == NOTHING and unclear:
            words = f"not decided at {', '.join(map(str, unclear))}"
        found[task] = words
    return found


_COLUMNS = ("verdict", "task", "load", "A", "B", "lost", "won", "no answer", "p (Holm)")


def make_load_document(found: LoadComparison, out_dir: Path) -> Document:
    """Return the document: a conclusion for each task at each load, the worst first."""
    ordered = sorted(found.tasks, key=lambda one: (ORDER.index(one.outcome), one.load))
    order = f"loads were asked in the order {', '.join(map(str, found.order))}"
    worst = ordered[0].outcome if ordered else VerdictOutcome.ERROR
    document = Document(
        "compare",
        "serve-eval compare at several loads",
        names_endpoint=False,
        header=found,
        conclusions=[_conclude(found, one) for one in ordered],
        outcome=worst.value,
        noun="comparisons",
        overview=_tabulate(ordered),
        notice=describe_old_answers(found.warnings),
        statements=[Statement("order", order, depth=Depth.MORE)],
        warnings=found.warnings,
        commands=_list_next(ordered, out_dir),
        result=out_dir / COMPARE_AT_LOADS.result,
    )
    lines = map(document.make_line_of, document.conclusions)
    cases = [
        CiCase(
            one.task,
            f"load {one.load}",
            state=choose_state(one.outcome, ()),
            line=line,
            properties={"fell": str(one.lost), "rose": str(one.won)},
        )
        for one, line in zip(ordered, lines, strict=True)
    ]
    return document.with_suites(
        [
            CiSuite(
                "serve-eval compare",
                name_old(cases, document.notice),
                seconds=found.wall_s,
            )
        ]
    )


def _conclude(found: LoadComparison, one: TaskAtLoad) -> Conclusion:
    figures = ""
    if one.a is not None and one.b is not None:
        drop, *_ = split_change(one.b - one.a, None, points=True)
        figures = describe_drop(f"{one.b:.1f}", f"{one.a:.1f}", drop, names=("B", "A"))
    p = one.p if one.p_holm is None else one.p_holm
    tested = "" if p is None else f", p {p:.2g}"
    words = found.words.get(one.task, "")
    passed = one.outcome is VerdictOutcome.PASS
    return Conclusion(
        f"{one.task} at {one.load} in flight",
        one.outcome.value,
        figures=figures,
        counts=f"{one.lost} fell, {one.won} rose{tested}, {sum(one.failed)} failed",
        cause="" if passed else words,
        statements=[Statement("loads", words)] if passed and words else [],
    )


def _list_next(ordered: Sequence[TaskAtLoad], out_dir: Path) -> list[str]:
    """Return the command that explains the worst load, unless all passed."""
    bad = [one for one in ordered if one.outcome is VerdictOutcome.FAIL]
    return [f"serve-eval diagnose {quote_path(out_dir / str(bad[0].load))}"] if bad else []


def _tabulate(ordered: Sequence[TaskAtLoad]) -> DataTable:
    rows = []
    for one in ordered:
        p = one.p if one.p_holm is None else one.p_holm
        texts = [
            one.outcome.value,
            one.task,
            str(one.load),
            *("-" if value is None else f"{value:.1f}" for value in (one.a, one.b)),
            str(one.lost),
            str(one.won),
            f"{one.failed[0]}, {one.failed[1]}",
            "-" if p is None else f"{p:.2g}",
        ]
        first, *others = texts
        state = name_state(one.outcome)
        rows.append([DataCell(first, state=state), *(DataCell(text) for text in others)])
    return DataTable(
        "Loads",
        columns=[DataColumn(name, number=i > 1) for i, name in enumerate(_COLUMNS)],
        rows=rows,
        caption="lost, won: scores that fell and rose from A to B; no answer: of A, of B",
    )
