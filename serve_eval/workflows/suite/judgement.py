"""Derive the verdict of a suite from its runs, with correction for many tests and with waivers.

The functions send no requests and read no files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, replace
from datetime import date

from serve_eval.evaluation.run_session import SuitePart
from serve_eval.frozen import freeze, freeze_places
from serve_eval.report.summary.figures import in_points
from serve_eval.report.task_line import describe_undecided
from serve_eval.schema import (
    CERTAIN,
    Plan,
    Report,
    RunError,
    Suite,
    SuiteRow,
    SuiteRun,
    TaskReport,
    Verdict,
    VerdictOutcome,
    Waiver,
    WaiverState,
    WaiverUse,
)
from serve_eval.stats.multiplicity import benjamini_hochberg, holm
from serve_eval.verdicts.exit_code import (
    FAIL,
    INFRASTRUCTURE,
    PASS,
    UNDECIDED,
    USAGE,
    code_of,
    worst,
)
from serve_eval.verdicts.many_tests import (
    GATES,
    UNPROVEN,
    explain_unproven,
    find_rise_p,
    find_test,
    name_alone,
)
from serve_eval.workflows.suite.suite_form import matches

ALPHA = 0.05
"""Probability of any false alarm among all paired gates of a suite."""
USUAL_GATE = "paired"
"""The rule of a task that was not asked and whose plan names none, as it may be one."""
_WORDS = {
    FAIL: "FAIL",
    INFRASTRUCTURE: "ERROR",
    USAGE: "ERROR",
    UNDECIDED: "INCONCLUSIVE",
    PASS: "PASS",
}


@freeze_places
class EndedRun:
    """A run with its report or error. `kept` means that the report existed already.

    `earlier` is the report of fewer tasks, to which an error kept others from being added. A run
    that was `not_asked`, for that reason, has neither report nor error.
    """

    run: SuiteRun
    _: KW_ONLY
    report: Report | None = None
    error: RunError | None = None
    kept: bool = False
    earlier: Report | None = None
    not_asked: str = ""


@freeze
class SuiteJudgement:
    """The judgement of a whole suite: its rows, waivers, exit code and verdict."""

    rows: tuple[SuiteRow, ...]
    waivers: tuple[WaiverUse, ...]
    exit_code: int
    verdict: str


def judge(
    ended: Sequence[EndedRun], waivers: Sequence[Waiver], today: date, *, strict: bool = False
) -> SuiteJudgement:
    """Judge a suite. `today` is a day in UTC.

    With `strict`, undecided rows count as failed, and so do those that pass but decide nothing.
    """
    runs = {
        one.run.name: (one.run if one.report is None else replace(one.run, plan=one.report.plan))
        for one in ended
    }
    found = correct_rows([row for one in ended for row in rows(one)])
    uses = [_use(waiver, found, runs, today) for waiver in waivers]
    valid = [use.waiver for use in uses if use.state is WaiverState.APPLIED]
    found = [_waive(row, valid, runs) for row in found]
    errors = {
        (one.run.name, VerdictOutcome.ERROR): one.error.exit_code
        for one in ended
        if one.error is not None
    }
    codes = [
        PASS if row.waiver else errors.get((row.run, row.outcome), code_of(row.outcome))
        for row in found
    ]
    codes += [FAIL for one in ended if strict and find_undecided(one)]
    code = worst(codes, strict=strict)
    outcomes = {row.outcome for row in found}
    unjudged = outcomes <= {VerdictOutcome.NOT_JUDGED, VerdictOutcome.SHARD}
    word = max(outcomes).value if unjudged and outcomes else _WORDS.get(code, "ERROR")
    return SuiteJudgement(rows=tuple(found), waivers=tuple(uses), exit_code=code, verdict=word)


def find_undecided(one: EndedRun) -> str:
    """Return why a run that passed decides nothing, or ""."""
    return "" if one.report is None else describe_undecided(one.report)


def rows(one: EndedRun) -> list[SuiteRow]:
    """Return one row per task, with the run's own verdict.

    If the run has no report, every planned task is an ERROR that no earlier report has.
    """
    run = one.run
    if one.report is not None:
        return [_row(run, one.report.plan, task) for task in one.report.tasks]
    if one.error is None:
        return [_not_asked(one, task.name) for task in run.plan.tasks]
    earlier = () if one.earlier is None else one.earlier.tasks
    had = {task.spec.name: _row(run, one.earlier.plan, task) for task in earlier if one.earlier}
    return [
        had.get(task.name)
        or SuiteRow(
            run=run.name,
            task=task.name,
            model=run.plan.model,
            attributes=run.attributes,
            rule=run.plan.verdict.name,
            own=VerdictOutcome.ERROR,
            outcome=VerdictOutcome.ERROR,
            reasons=(one.error.message,),
        )
        for task in run.plan.tasks
    ]


def _not_asked(one: EndedRun, task: str) -> SuiteRow:
    run = one.run
    return SuiteRow(
        run=run.name,
        task=task,
        model=run.plan.model,
        attributes=run.attributes,
        rule=run.plan.verdict.name if run.plan.rule_named else USUAL_GATE,
        own=VerdictOutcome.NOT_ASKED,
        outcome=VerdictOutcome.NOT_ASKED,
        unasked=None,
        reasons=(one.not_asked,),
    )


def find_certain_fail(ended: Sequence[EndedRun], suite: Suite, today: date) -> SuiteRow | None:
    """Return a row that fails the suite whatever the runs give that have not ended.

    Holm's correction never takes back a proof when other p-values become smaller, so that a test
    that was not made counts as 1.
    """
    names = {one.run.name for one in ended}
    rest = [EndedRun(run, not_asked=CERTAIN) for run in suite.runs if run.name not in names]
    judged = judge([*ended, *rest], suite.waivers, today)
    failing = (row for row in judged.rows if row.outcome is VerdictOutcome.FAIL)
    return next((row for row in failing if row.waiver is None), None)


def share_errors(suite: Suite, run: SuiteRun, today: date) -> SuitePart:
    """Return what a run shares with its suite: the number of tests, and the tasks with a waiver.

    A plan without a rule may have a paired one by its reference. All tasks of a run without a model
    count as waived, since a waiver may match the model.
    """
    tests = sum(len(one.plan.tasks) for one in suite.runs if _may_be_gate(one.plan))
    valid = [one for one in suite.waivers if today <= one.until]
    waived = {
        task.name
        for task in run.plan.tasks
        if (valid and run.plan.model is None)
        or any(matches(one.match, run, task.name) for one in valid)
    }
    return SuitePart(tests=tests, waived=frozenset(waived), ends=suite.end_when_certain)


def _may_be_gate(plan: Plan) -> bool:
    return plan.verdict.name in GATES or not plan.rule_named


def _row(run: SuiteRun, plan: Plan, task: TaskReport) -> SuiteRow:
    verdict, paired = task.verdict, task.verdict.paired
    by_anchors = verdict.rule == "anchors"
    p, finding = find_test(verdict)
    return SuiteRow(
        run=run.name,
        task=task.result.task,
        model=plan.model,
        attributes=run.attributes,
        rule=verdict.rule,
        own=verdict.outcome,
        outcome=verdict.outcome,
        failed=task.result.failed,
        repaired=task.result.doubted,
        other=verdict.other,
        evaluated=verdict.evaluated,
        estimate=verdict.estimate,
        interval=task.result.interval,
        bounds=verdict.bounds,
        reference=verdict.reference,
        reference_interval=verdict.reference_interval,
        threshold=verdict.threshold,
        in_points=in_points(task.result.metric),
        higher_is_better=task.result.metric.higher_is_better,
        difference=None if paired is None else paired.difference,
        difference_interval=None if paired is None else paired.interval,
        p=p,
        finding=finding,
        p_rise=None if paired is None or by_anchors else find_rise_p(paired),
        margin=None if paired is None or by_anchors else paired.margin,
        default_margin=plan.verdict.options.get("margin") is None,
        reasons=verdict.reasons,
        warnings=verdict.warnings,
        unasked=_count_unasked(verdict),
        alpha=None if paired is None else paired.alpha,
    )


def _count_unasked(verdict: Verdict) -> int:
    if verdict.budget is not None:
        return verdict.budget.unasked
    return verdict.early.saved if verdict.early is not None and verdict.early.stopped else 0


def correct_rows(found: Sequence[SuiteRow], alpha: float = ALPHA) -> list[SuiteRow]:
    """Return the rows with p_holm, q_bh, and the corrected findings and outcomes.

    Holm's correction covers the tests of the rules in GATES, and affects only proven drops. If a
    drop is no longer proven, FAIL becomes INCONCLUSIVE (a drop of the margin is not excluded
    either) and SMALL_DROP becomes PASS. No row becomes worse. Of other rules, whose outcome does
    not follow from the test, only the finding is corrected, over the tests of all rules. q covers
    these as well, because it decides nothing. A gate that stopped early or was not asked counts,
    since its test has a part of alpha. If looks used a part of the alpha of a row, its test has the
    rest.
    """
    tested = {i: row.p for i, row in enumerate(found) if row.p is not None}
    gates = {
        i: p
        for i, row in enumerate(found)
        if row.rule in GATES and (p := _find_gate_p(row)) is not None
    }
    q = dict(zip(tested, benjamini_hochberg(list(tested.values())), strict=True))
    adjusted = dict(zip(tested, holm(list(tested.values())), strict=True))
    adjusted |= dict(zip(gates, holm(list(gates.values())), strict=True))
    result = [
        replace(
            row,
            q_bh=q.get(i),
            p_holm=None if i not in tested else adjusted[i],
            tests=None if i not in tested else len(gates) if i in gates else len(tested),
        )
        for i, row in enumerate(found)
    ]
    found = [
        _unproven(row) if row.p_holm is not None and row.p_holm > _find_level(row, alpha) else row
        for row in result
    ]
    return _name_proven(found, alpha)


def _find_gate_p(row: SuiteRow) -> float | None:
    """Return the p with which a gate counts: what stopped early used its own part of alpha."""
    if row.p is not None or row.unasked == 0:
        return row.p
    return 0.0 if row.own is VerdictOutcome.FAIL else 1.0


def _find_level(row: SuiteRow, alpha: float) -> float:
    """Return the alpha that is left for the test of a gate after the looks of its run."""
    return alpha if row.rule not in GATES or row.alpha is None else min(alpha, row.alpha)


def _name_proven(found: Sequence[SuiteRow], alpha: float) -> list[SuiteRow]:
    """Return the rows with the direction of each change that is proven after a correction.

    A rise must be outside of its interval too.
    """
    result = list(found)
    tested = [i for i, row in enumerate(found) if row.p is not None]
    rises = holm([1.0 if (p := found[i].p_rise) is None else p for i in tested])
    for i, rise in zip(tested, rises, strict=True):
        row = found[i]
        if row.finding in ("SMALL_DROP", "FAIL") and row.p_holm is not None:
            result[i] = replace(row, proven="drop", proven_p=row.p_holm)
        elif row.difference_interval and row.difference_interval[0] > 0.0 and rise <= alpha:
            result[i] = replace(row, proven="rise", proven_p=rise)
    return result


def _unproven(row: SuiteRow) -> SuiteRow:
    """Return a row with the finding for an unproven drop, and a row of GATES with the outcome.

    The anchors rule has no margin to leave open: without a proof it passes, as in a single run.
    """
    assert row.p is not None
    assert row.p_holm is not None
    why = explain_unproven(row.p, row.p_holm, "the suite's tests")
    if row.finding == "FAIL" and row.rule in GATES:
        row = replace(row, warnings=tuple(name_alone(one, row.rule) for one in row.warnings))
    if row.finding == "FAIL" and row.rule == "anchors":
        warnings = (*row.warnings, f"a loss among the anchors is {why}")
        return replace(
            row, outcome=VerdictOutcome.PASS, finding="PASS", reasons=(), warnings=warnings
        )
    if row.finding == "FAIL" and row.rule not in GATES:
        return replace(row, finding=UNPROVEN[row.finding])
    if row.finding == "FAIL":
        reasons = (*row.reasons, f"margin_not_excluded: {why}")
        return replace(
            row, outcome=VerdictOutcome.INCONCLUSIVE, finding="INCONCLUSIVE", reasons=reasons
        )
    if row.finding == "SMALL_DROP":
        others = tuple(warning for warning in row.warnings if not warning.startswith("small_drop"))
        return replace(row, finding="PASS", warnings=(*others, f"small drop {why}"))
    return row


def _is_named(waiver: Waiver, row: SuiteRow, runs: dict[str, SuiteRun]) -> bool:
    return matches(waiver.match, runs[row.run], row.task)


def _waive(row: SuiteRow, valid: Sequence[Waiver], runs: dict[str, SuiteRun]) -> SuiteRow:
    """Return the row with its waiver, if any.

    Only a FAIL of the run can be waived, even if the correction made it INCONCLUSIVE. Any other
    undecided row is not known to fail, and an error is not a property of the model.
    """
    if row.own is not VerdictOutcome.FAIL:
        return row
    return replace(
        row, waiver=next((waiver for waiver in valid if _is_named(waiver, row, runs)), None)
    )


def _use(
    waiver: Waiver, found: Sequence[SuiteRow], runs: dict[str, SuiteRun], today: date
) -> WaiverUse:
    named = [row for row in found if _is_named(waiver, row, runs)]
    failing = [row for row in named if row.own is VerdictOutcome.FAIL]
    if not named:
        state = WaiverState.NO_MATCH
    elif today > waiver.until:
        state = WaiverState.EXPIRED
    elif failing:
        state = WaiverState.APPLIED
    elif all(row.own is VerdictOutcome.PASS for row in named):
        state = WaiverState.NOT_NEEDED
    else:
        state = WaiverState.UNDECIDED
    return WaiverUse(
        waiver=waiver, state=state, failing=tuple(f"{row.run}/{row.task}" for row in failing)
    )
