"""Make the cells of the table of deployments by tasks, corrected for its many tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Literal

import msgspec

from serve_eval.report.lines import describe_repeats
from serve_eval.report.results_table import DeploymentRow, ResultCell, TaskColumn
from serve_eval.report.results_table.cell import UNJUDGED, describe_run_effect, name_outcome
from serve_eval.report.summary.figures import count, figure
from serve_eval.schema import (
    PairedComparison,
    SuiteRow,
    TaskReport,
    Verdict,
    VerdictOutcome,
)
from serve_eval.series.deployments import SEED, Key, count_repeats, find_pass_at_all, find_seed
from serve_eval.series.measured_runs import MeasuredRun
from serve_eval.series.read_runs import PlannedTask
from serve_eval.stats.multiplicity import holm
from serve_eval.verdicts.many_tests import GATES, UNPROVEN, find_rise_p, find_test
from serve_eval.verdicts.pairing import UNPAIRED
from serve_eval.verdicts.references.lookup import describe_reference
from serve_eval.verdicts.rules._classic import find_margin
from serve_eval.verdicts.validity import CHOSEN_SAMPLES

NO_PAIRS = (UNPAIRED, "no_pairs: ")
"""The beginnings of a verdict's remarks that say why there are no pairs."""


def make_cell(task: TaskReport, run: MeasuredRun, row: SuiteRow | None) -> ResultCell:
    """Return the cell of a task, with the verdict of its suite if it has one."""
    result, verdict = task.result, task.verdict
    partial = verdict.estimated
    value = verdict.estimate if partial else result.value
    paired = verdict.paired
    p_rule, finding = find_test(verdict)
    return ResultCell(
        value=value,
        interval=None if value is None or partial else result.interval,
        outcome=verdict.outcome if row is None else row.outcome,
        scored=result.scored,
        planned=result.planned,
        failed=result.failed,
        repaired=result.doubted,
        estimate=partial,
        waived=row is not None and row.waiver is not None,
        run=str(run.folder),
        answered=_identify(task, run),
        seed=find_seed(task),
        whole=not partial and verdict.outcome is not VerdictOutcome.NOT_JUDGED,
        reason="; ".join(dict.fromkeys(verdict.reasons)) or _count_failures(task),
        rule=verdict.rule,
        reference=verdict.reference,
        difference=None if paired is None else paired.difference,
        difference_interval=None if paired is None else paired.interval,
        no_difference=_explain_no_difference(task) if paired is None else "",
        margin=_find_margin(verdict),
        default_margin=run.report is not None
        and run.report.plan.verdict.options.get("margin") is None,
        inflation=1.0 if paired is None else paired.inflation,
        run_effect=_describe_run_effect(paired),
        p=None if paired is None else paired.p,
        p_rise=None if paired is None else find_rise_p(paired),
        p_rule=p_rule,
        p_holm=None if row is None else row.p_holm,
        tests=None if row is None else row.tests,
        in_suite=row is not None,
        chosen=any(one.startswith(CHOSEN_SAMPLES) for one in verdict.warnings),
        q=None if row is None else row.q_bh,
        finding=(row.finding if row else finding) or "",
        proven=row.proven if row else _find_proven(paired),
        reference_name="" if task.reference is None else describe_reference(task.reference),
        repeats=count_repeats(task),
        pass_at_repeats=None if result.stability is None else find_pass_at_all(result.stability),
        vote=None if result.stability is None else result.stability.majority,
        published="" if result.stability is None else describe_repeats(result),
    )


def _identify(task: TaskReport, run: MeasuredRun) -> str:
    """Return what copies of a run share: its first moment, and what became of the task."""
    known = run.model, run.began, task.fingerprint, task.result
    return hashlib.sha256(msgspec.json.encode(known)).hexdigest()


def _describe_run_effect(paired: PairedComparison | None) -> str:
    """Return a note that the runs of the reference differ as a whole, or those of a task."""
    if paired is None or paired.inflation == 1.0:
        return ""
    return describe_run_effect(
        "one side", paired.cochran_q or 0.0, paired.cochran_p or 0.0, paired.inflation
    )


def _find_margin(verdict: Verdict) -> float | None:
    """Return the drop at which a rule fails; under classic the threshold says it."""
    if verdict.rule == "classic":
        return None if verdict.threshold is None else find_margin(verdict)
    paired = verdict.paired
    return None if paired is None or verdict.rule == "anchors" else paired.margin


def _explain_no_difference(task: TaskReport) -> str:
    """Return why a task has no difference from its reference on the same prompts."""
    verdict, reference = task.verdict, task.reference
    if verdict.outcome in UNJUDGED:
        why = "; ".join(verdict.reasons) or _count_failures(task)
        return name_outcome(verdict.outcome, why)
    if remarks := [
        one for one in (*verdict.reasons, *verdict.warnings) if one.startswith(NO_PAIRS)
    ]:
        return remarks[0]
    if verdict.estimated:
        what = "an early stop" if verdict.budget is None else "a limit of the run"
        return f"{what} leaves an estimate, which is not paired"
    if reference is not None and reference.runs is None:
        return "the reference has no scores of single samples"
    return "; ".join(verdict.reasons) or "the rule does not compare prompt by prompt"


def _find_proven(paired: PairedComparison | None) -> Literal["", "drop", "rise"]:
    """Return the direction of a change that a run alone proves."""
    if paired is None:
        return ""
    if paired.finding in ("SMALL_DROP", "FAIL"):
        return "drop"
    return "rise" if paired.interval is not None and paired.interval[0] > 0.0 else ""


def _count_failures(task: TaskReport) -> str:
    return ", ".join(f"{n} {name}" for name, n in task.result.failures.items())


LAUNCH_ERROR = "LaunchError"
"""The name of the error of a server that did not start, or that ended."""
_SHORT = 40
"""Characters of options that the heading of a column shows."""


def list_lost(run: MeasuredRun) -> Iterator[tuple[PlannedTask, SuiteRow]]:
    """Yield the tasks of a run that its report lacks, each with its row in the suite."""
    had = [] if run.report is None else [task.result.task for task in run.report.tasks]
    for name, row in run.judged.items():
        lost = run.report is None or row.outcome is VerdictOutcome.ERROR
        if name not in had and name in run.planned and lost:
            yield run.planned[name], row


def find_column(planned: PlannedTask, columns: Mapping[Key, TaskReport]) -> Key:
    """Return the column of the runs that asked a task as it was planned, or a new one.

    The fingerprint decides if it is known, else the options of the task.
    """
    name, known = planned.spec.name, planned.fingerprint
    for key, task in columns.items():
        if known is None:
            alike = dict(task.spec.options) == dict(planned.spec.options)
        else:
            alike = _without_seed(task.fingerprint) == _without_seed(known)
        if task.spec.name == name and alike:
            return key
    asked = planned.spec.options if known is None else _without_seed(known)
    return name, f"planned {msgspec.json.encode(asked, order='sorted').decode()}"


def _without_seed(fingerprint: Mapping[str, str]) -> dict[str, str]:
    """Return a fingerprint without the sampling seed, which tells repeats apart."""
    return {name: value for name, value in fingerprint.items() if name != SEED}


def make_column(planned: PlannedTask, headings: Sequence[str]) -> TaskColumn:
    """Return a column that no report has; `headings` are those of the others."""
    name = planned.spec.name
    options = ", ".join(f"{key} {value}" for key, value in planned.spec.options.items())
    longer = f"{name} ({options[:_SHORT] or 'planned'})"
    return TaskColumn(
        task=name,
        heading=longer if any(one.startswith(name) for one in headings) else name,
        metric=planned.metric,
        planned=planned.prompts,
        repeats=(planned.repeats,),
    )


def make_lost_cell(planned: PlannedTask, row: SuiteRow, run: MeasuredRun) -> ResultCell:
    """Return the cell of a task without a result."""
    reason = "; ".join(dict.fromkeys(row.reasons))
    return ResultCell(
        value=None,
        interval=None,
        outcome=row.outcome,
        scored=0,
        planned=planned.samples,
        waived=row.waiver is not None,
        run=str(run.folder),
        seed=planned.seed,
        whole=False,
        reason=reason,
        brief=_say_ending(run),
        answers=run.answers,
        no_difference=name_outcome(row.outcome, reason),
        in_suite=True,
    )


def _say_ending(run: MeasuredRun) -> str:
    """Return how the server of a run failed, without what it wrote; "" for another error."""
    if run.error != LAUNCH_ERROR:
        return ""
    if run.answers:
        return f"the server ended after {run.answers}"
    return "the server did not start"


ALPHA = 0.05
"""Probability of any false finding among the runs of a table that belong to no suite."""


def correct_cells(rows: Iterable[DeploymentRow]) -> list[DeploymentRow]:
    """Return rows in which the findings of runs outside of suites are corrected by Holm together.

    The correction of a suite, which counts also the runs that a table lacks, stays as it is.
    Verdicts stay those of each run alone. The same answers in a copy of a run are one test.
    """
    listed = list(rows)
    tested = [one for row in listed for one in row.cells if one is not None and _is_tested(one)]
    alone = {one.answered or str(i): one for i, one in enumerate(tested)}
    drops = dict(zip(alone, holm([one.p_rule or 0.0 for one in alone.values()]), strict=True))
    rises = dict(
        zip(
            alone,
            holm([1.0 if one.p_rise is None else one.p_rise for one in alone.values()]),
            strict=True,
        )
    )
    names = (one.answered or str(i) for i, one in enumerate(tested))
    return [
        replace(
            row,
            cells=[
                one
                if one is None or not _is_tested(one)
                else _correct(one, drops[name := next(names)], rises[name], len(alone))
                for one in row.cells
            ],
        )
        for row in listed
    ]


def _is_tested(cell: ResultCell) -> bool:
    return not cell.in_suite and cell.p_rule is not None


def _correct(cell: ResultCell, drop: float, rise: float, tests: int) -> ResultCell:
    corrected = replace(cell, p_holm=drop, tests=tests)
    if cell.finding in UNPROVEN and drop > ALPHA:
        return replace(corrected, finding=UNPROVEN[cell.finding], proven="")
    if cell.proven == "rise" and rise > ALPHA:
        return replace(corrected, proven="")
    return corrected


def describe_rules(columns: Sequence[TaskColumn], rows: Sequence[DeploymentRow]) -> Iterator[str]:
    """Yield each rule that judged, with its margin, and how many tests the corrections are over."""
    pairs = [
        (column, cell)
        for row in rows
        for column, cell in zip(columns, row.cells, strict=True)
        if cell is not None and cell.rule and cell.outcome not in UNJUDGED
    ]
    for rule, in_suite in dict.fromkeys((cell.rule, cell.in_suite) for _, cell in pairs):
        judged = [one for one in pairs if (one[1].rule, one[1].in_suite) == (rule, in_suite)]
        cells = [cell for _, cell in judged]
        tests = sorted({one.tests for one in cells if one.tests is not None})
        how = "not corrected for the number of tests"
        if in_suite and rule in GATES and tests:
            how = f"corrected by Holm over {_say_tests(tests)} of the suite"
        yield f"verdicts by {rule}{_say_margin(rule, judged)}, {how}"
        if tests and not (in_suite and rule in GATES):
            whose = "of the suite" if in_suite else "of this table"
            yield (
                f"findings and proven changes on the same prompts, of runs judged by {rule}: Holm"
                f" over {_say_tests(tests)} {whose}, one-sided"
            )


def _say_tests(numbers: Sequence[int]) -> str:
    *most, last = numbers
    return f"{', '.join(map(str, most))} and {last} tests" if most else count(last, "test")


def _say_margin(rule: str, judged: Sequence[tuple[TaskColumn, ResultCell]]) -> str:
    """Return the margins of a rule by unit: " with a margin of 2.0 points (the default)"."""
    units: dict[str, list[tuple[float, str]]] = {}
    for column, cell in judged:
        if cell.margin is not None:
            shown = figure(cell.margin, column.metric)
            units.setdefault(column.unit, []).append((cell.margin, shown))
    if not units:
        return ""
    margins = " and ".join(f"{_say_range(found)} {unit}" for unit, found in units.items())
    if rule == "classic":
        return f" with thresholds {margins} from the reference"
    default = " (the default)" if all(cell.default_margin for _, cell in judged) else ""
    return f" with a margin of {margins}{default}"


def _say_range(found: Sequence[tuple[float, str]]) -> str:
    (_, low), (_, high) = min(found), max(found)
    return low if low == high else f"{low} to {high}"


def add_stars(rows: list[DeploymentRow]) -> tuple[list[DeploymentRow], int]:
    """Return the rows with stars, and the number of tests.

    Twice the smaller p of both directions is two-sided. The interval must exclude 0 as well, since
    it holds missing answers at their best and worst. The same answers in a copy of a run are one
    test.
    """
    tested = [one for row in rows for one in row.cells if one is not None and _has_value(one)]
    alone = {one.answered or str(i): _find_p(one) for i, one in enumerate(tested)}
    adjusted = dict(zip(alone, holm(list(alone.values())), strict=True))
    names = (one.answered or str(i) for i, one in enumerate(tested))
    found = []
    for row in rows:
        cells = []
        for cell in row.cells:
            if cell is not None and _has_value(cell):
                p = adjusted[next(names)]
                cell = replace(cell, p_table=p, star=p <= ALPHA and _excludes_zero(cell))
            cells.append(cell)
        found.append(replace(row, cells=cells))
    return found, len(alone)


def _find_p(cell: ResultCell) -> float:
    return min(1.0, 2.0 * min(p for p in (cell.p, cell.p_rise) if p is not None))


def _has_value(cell: ResultCell) -> bool:
    return cell.difference is not None and cell.p is not None


def _excludes_zero(cell: ResultCell) -> bool:
    ends = cell.difference_interval
    return ends is not None and (ends[0] > 0.0 or ends[1] < 0.0)
