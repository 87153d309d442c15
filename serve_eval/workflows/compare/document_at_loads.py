"""Make the document of a comparison at several loads. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serve_eval.evaluation.session_log import describe_old_answers
from serve_eval.report.ci.ci_result import CiCase, CiSuite
from serve_eval.report.document import Conclusion, Depth, Document, Statement, name_state
from serve_eval.report.one_line import describe_drop
from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.run.cases import choose_state, name_old
from serve_eval.report.summary.table import ORDER
from serve_eval.report.task_line import split_change
from serve_eval.schema import LoadComparison, TaskAtLoad, VerdictOutcome
from serve_eval.shell_words import quote_path
from serve_eval.storage.story_files import COMPARE_AT_LOADS

_COLUMNS = ("verdict", "task", "load", "A", "B", "lost", "won", "no answer", "p (Holm)")


def make_load_document(found: LoadComparison, out_dir: Path) -> Document:
    """Return the document: a conclusion for each task at each load, the worst first."""
    ordered = sorted(found.tasks, key=lambda one: (ORDER.index(one.outcome), one.load))
    order = f"loads were asked in the order {', '.join(map(str, found.order))}"
    worst = ordered[0].outcome if ordered else VerdictOutcome.ERROR
    document = Document(
        story="compare",
        command="serve-eval compare at several loads",
        names_endpoint=False,
        header=found,
        conclusions=[_conclude(found, one) for one in ordered],
        outcome=worst.value,
        noun="comparisons",
        overview=_tabulate(ordered),
        notice=describe_old_answers(found.warnings),
        statements=[Statement(label="order", text=order, depth=Depth.MORE)],
        warnings=found.warnings,
        commands=_list_next(ordered, out_dir),
        result=out_dir / COMPARE_AT_LOADS.result,
    )
    lines = map(document.make_line_of, document.conclusions)
    cases = [
        CiCase(
            group=one.task,
            name=f"load {one.load}",
            state=choose_state(one.outcome, ()),
            line=line,
            properties={"fell": str(one.lost), "rose": str(one.won)},
        )
        for one, line in zip(ordered, lines, strict=True)
    ]
    return document.with_suites(
        [
            CiSuite(
                name="serve-eval compare",
                cases=name_old(cases, document.notice),
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
        name=f"{one.task} at {one.load} in flight",
        outcome=one.outcome.value,
        figures=figures,
        counts=f"{one.lost} fell, {one.won} rose{tested}, {sum(one.failed)} failed",
        cause="" if passed else words,
        statements=[Statement(label="loads", text=words)] if passed and words else [],
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
        rows.append([DataCell(text=first, state=state), *(DataCell(text=text) for text in others)])
    return DataTable(
        title="Loads",
        columns=[DataColumn(name=name, number=i > 1) for i, name in enumerate(_COLUMNS)],
        rows=rows,
        caption="lost, won: scores that fell and rose from A to B; no answer: of A, of B",
    )
