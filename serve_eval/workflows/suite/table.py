"""Print the report of a suite: a table of runs and tasks, the reasons, the waivers, the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.plan.command_line import HOW_TO_TAKE, write_take_command
from serve_eval.evaluation.storage.file_names import SUITE_RUNS
from serve_eval.evaluation.storage.run_folder import read_plan
from serve_eval.report.layout import fit_tables, tell_rehearsal
from serve_eval.report.results_table import write_text
from serve_eval.report.run.cases import pick_remarks
from serve_eval.report.summary import Row, badge, print_commands, print_rows, style_of
from serve_eval.report.summary.figures import count, write_figure
from serve_eval.report.summary.table import ORDER, SHORTEST, measure
from serve_eval.report.text import clean
from serve_eval.schema import SuiteReport, SuiteRow, VerdictOutcome
from serve_eval.schema.verdict import OTHER_THRESHOLD
from serve_eval.series.result_table import find_suite_results
from serve_eval.shell_words import quote_path
from serve_eval.verdicts import two_rules
from serve_eval.verdicts.many_tests import GATES
from serve_eval.verdicts.pairing import UNPAIRED
from serve_eval.workflows.suite.changes import describe_changes
from serve_eval.workflows.suite.old_answers import list_old_rows
from serve_eval.workflows.suite.proven import describe_proven, describe_verdict, is_marked
from serve_eval.workflows.suite.run_warnings import list_run_warnings
from serve_eval.workflows.suite.waivers import describe_waiver

_TESTED = ("p", "p holm", "q")
_SHOWN = (VerdictOutcome.FAIL, VerdictOutcome.INCONCLUSIVE)
"""Outcomes after which the answers of a run are worth a look."""
_FOLDED = (VerdictOutcome.PASS, VerdictOutcome.NO_REFERENCE)
"""Outcomes that need no line of their own where the table of deployments by tasks is printed."""
_FEW = "detects only drops"
"""Is in the warning of a rule that misses large drops."""
_FIXED = ("verdict", "run", "task", "value")


def render(report: SuiteReport, out_dir: Path, console: Console, *, stored: bool = True) -> None:
    """Print the verdict, tables, the reasons, and the waivers.

    The first table has a line for each run and task, the worst first. With several runs and tasks,
    deployments by tasks follow, and what passed or has no reference is only there, except for a
    proven change. Not `stored`: the runs were judged again, so that the table of their own reports
    would say something else.
    """
    tell_rehearsal(report.rehearsal, console)
    console.print(make_title(report), soft_wrap=True)
    rows = sorted(report.rows, key=rank)
    table = find_suite_results(out_dir) if stored else None
    told = [r for r in rows if table is None or r.outcome not in _FOLDED or is_marked(r)]
    if told:
        console.print(*fit_tables(*_lay_out(told, console.width), console.width), sep="\n\n")
    if table is not None:
        console.out(f"\n{write_text(table, console.width, reasons=False)}", highlight=False)
    print_rows(console, list_old_rows(report, out_dir) if stored else ())
    print_rows(console, list_explanations(report))
    print_rows(console, map(describe_waiver, report.waivers))
    print_rows(console, [("runs", f"{out_dir}/runs/RUN, each with report.json")])
    if (worst := find_worth_a_look(rows)) is not None:
        command = f"serve-eval show {quote_path(out_dir / SUITE_RUNS / worst.run)} --wrong"
        print_commands(console, [command])
    if not report.rehearsal and (commands := _name_take_command(rows, out_dir)):
        print_rows(console, [("note", HOW_TO_TAKE)])
        print_commands(console, commands)


def _name_take_command(rows: Sequence[SuiteRow], out_dir: Path) -> list[str]:
    """Return the command that takes the references that the first run with none lacks."""
    lacking = [row for row in rows if row.outcome is VerdictOutcome.NO_REFERENCE]
    if not lacking:
        return []
    run = lacking[0].run
    plan = read_plan(out_dir / SUITE_RUNS / run)
    return [write_take_command(plan, [row.task for row in lacking if row.run == run])]


def make_title(report: SuiteReport) -> Text:
    """Return the verdict of the suite, and how many of its tasks had which."""
    line = badge(report.verdict, style_of(report.verdict))
    return line.append(clean(f"  suite {report.name}: {describe_counts(report)}"))


def describe_counts(report: SuiteReport) -> str:
    """Return how many tasks had which verdict, the worst first."""
    counts = Counter(describe_verdict(row) for row in sorted(report.rows, key=rank))
    counted = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    return f"{count(len(report.runs), 'run')}, {count(len(report.rows), 'task')}: {counted}"


def find_worst_fail(report: SuiteReport) -> SuiteRow | None:
    """Return the first failing row that no waiver covers, in the order of the table."""
    rows = sorted(report.rows, key=rank)
    failing = (r for r in rows if r.outcome is VerdictOutcome.FAIL and r.waiver is None)
    return next(failing, None)


def find_worth_a_look(rows: Sequence[SuiteRow]) -> SuiteRow | None:
    """Return the row whose answers to read first; None if nothing is wrong.

    It is the worst FAIL, else the largest proven drop that passes or is undecided, else the first
    that is undecided. What is waived comes last.
    """
    told = [row for row in rows if row.outcome in _SHOWN or row.proven == "drop"]

    def order(row: SuiteRow) -> tuple[bool, bool, bool, float]:
        failed = row.outcome is VerdictOutcome.FAIL
        return row.waiver is not None, not failed, row.proven != "drop", _rank_drop(row)

    return min(told, key=order, default=None)


def rank(row: SuiteRow) -> tuple[int, bool, int, float]:
    """Return a sort key: the worst outcome first, a waived one after its like, a drop before.

    Of proven drops the largest is first.
    """
    direction = ("drop", "", "rise").index(row.proven)
    return ORDER.index(row.outcome), row.waiver is not None, direction, _rank_drop(row)


def _rank_drop(row: SuiteRow) -> float:
    """Return the change of a proven drop, which is negative; other rows keep their order."""
    return row.difference or 0.0 if row.proven == "drop" else 0.0


def _lay_out(rows: Sequence[SuiteRow], width: int) -> tuple[list[str], list[list[Text]]]:
    """Return columns and cells that fit `width`, if that is possible.

    A column without a figure is not drawn. Of the others, the limit, q and attributes are left out
    first, since most names of runs hold these, then p, the interval and the reference. Names lose
    their middle only if that is not enough, and then the interval and the reference stay.
    """
    attributes = list(dict.fromkeys(key for row in rows for key in row.attributes))
    tested = any(row.p is not None for row in rows)
    columns = ["verdict", "run", *attributes, "task", "value", "95 %", "reference", "fails"]
    columns += _TESTED if tested else ()
    cells = [list_cells(row, attributes, tested=tested) for row in rows]
    empty = [
        name
        for i, name in enumerate(columns)
        if name not in _FIXED and all(row[i].plain == "-" for row in cells)
    ]
    columns, cells = _leave_out(columns, cells, empty)
    for least in ("fails", "q", *reversed(attributes), "p"):
        if measure(columns, cells) > width:
            columns, cells = _leave_out(columns, cells, [least])
    fewer = columns, cells
    for least in ("95 %", "reference"):
        if measure(*fewer) > width:
            fewer = _leave_out(*fewer, [least])
    if measure(*fewer) > width:
        named = _narrow_names(columns, cells, width)
        fewer = fewer[0], _narrow_names(*fewer, width)
        if measure(columns, named) <= width:
            fewer = columns, named
    return [clean(name) for name in fewer[0]], fewer[1]


def _narrow_names(columns: Sequence[str], cells: list[list[Text]], width: int) -> list[list[Text]]:
    for name in ("run", "task"):
        cells = _narrow(columns, cells, columns.index(name), width)
    return cells


def _leave_out(
    columns: Sequence[str], cells: Sequence[Sequence[Text]], names: Sequence[str]
) -> tuple[list[str], list[list[Text]]]:
    """Return columns and cells without the columns of these names."""
    kept = [i for i, name in enumerate(columns) if name not in names]
    return [columns[i] for i in kept], [[row[i] for i in kept] for row in cells]


def _narrow(
    columns: Sequence[str], cells: list[list[Text]], place: int, width: int
) -> list[list[Text]]:
    """Return cells whose texts at a place are short enough for `width`, if that is possible."""
    over = measure(columns, cells) - width
    longest = max((len(row[place]) for row in cells), default=0)
    if over <= 0 or longest <= SHORTEST:
        return cells
    room = max(SHORTEST, longest - over)
    return [[*row[:place], _shorten(row[place], room), *row[place + 1 :]] for row in cells]


def _shorten(name: Text, room: int) -> Text:
    """Return a name without its middle: the end tells the runs of a matrix apart."""
    text, half = name.plain, (room - 3) // 2
    return name if len(text) <= room else Text(f"{text[: room - 3 - half]}...{text[-half:]}")


def list_cells(row: SuiteRow, attributes: Sequence[str], *, tested: bool) -> list[Text]:
    """Return the cells of a row: verdict, run, attributes, task, value, interval, reference, limit.

    With `tested`, its p-values follow; p holm only where it decides the verdict.
    """
    holm = row.p_holm if row.rule in GATES else None
    tests = [_p(row.p), _p(holm), _p(row.q_bh)] if tested else []
    style = "bold yellow" if row.waiver else style_of(row.outcome)
    shown = [
        row.run,
        *(clean(str(row.attributes.get(name, "-"))) for name in attributes),
        row.task,
        show_value(row),
        "-" if row.interval is None else _span(row, row.interval),
        _number(row, row.reference),
        _limit(row),
        *tests,
    ]
    return [Text(describe_verdict(row), style=style), *map(Text, shown)]


def show_value(row: SuiteRow) -> str:
    """Return the value or, if answers are missing, the range of possible values."""
    if row.failed and row.bounds is not None:
        return _span(row, row.bounds)
    return _number(row, row.evaluated) if row.estimate is None else f"~{_number(row, row.estimate)}"


def _span(row: SuiteRow, ends: tuple[float, float]) -> str:
    low, high = (_number(row, end) for end in ends)
    return low if low == high else f"{low} to {high}"


def _number(row: SuiteRow, value: float | None) -> str:
    return "-" if value is None else write_figure(value, points=row.in_points)


def _limit(row: SuiteRow) -> str:
    """Return the values that fail, or the rule if it is no comparison with a threshold."""
    if row.rule in OTHER_THRESHOLD or row.threshold is None:
        return "-" if row.rule == "none" or row.reference is None else row.rule
    below = row.higher_is_better
    if below is None:  # a file of an older version
        below = row.reference is None or row.threshold <= row.reference
    return f"{'<' if below else '>'} {_number(row, row.threshold)}"


def _p(value: float | None) -> str:
    return "-" if value is None else "<.0001" if value < 0.0001 else f"{value:.4f}"


def list_explanations(report: SuiteReport) -> Iterator[Row]:
    """Yield rows that explain the table: changes, errors, reasons, p-values and warnings."""
    if report.changes is not None:
        yield "since", describe_changes(report.changes)
    stopped: dict[tuple[str, str, str], list[str]] = {}
    for run in report.runs:
        if (one := run.error) is not None:
            stopped.setdefault((one.kind, one.message, one.hint), []).append(run.name)
    for (kind, message, hint), names in stopped.items():
        yield "error", f"{_name_first(names)}: {kind}: {message}"
        yield from (("fix", one) for one in (hint,) if one)
    errors = {run.name for run in report.runs if run.error is not None}
    remarks: dict[Row, list[str]] = {}
    for row in report.rows:
        lost = row.run in errors and row.outcome is VerdictOutcome.ERROR
        for remark in () if lost else _remarks(row):
            remarks.setdefault(remark, []).append(f"{row.run}/{row.task}")
    for (label, text), names in remarks.items():
        yield label, f"{_name_first(names)}: {text}"
    if sum(row.p_holm is not None and row.rule in GATES for row in report.rows) > 1:
        yield (
            "p holm",
            f"{report.alpha:g} or less proves a drop; any false alarm has at most that probability;"
            " q: for triage only",
        )
    yield from (("warning", line) for line in list_run_warnings(report))


def _name_first(names: Sequence[str]) -> str:
    return f"{names[0]} and {len(names) - 1} more" if len(names) > 1 else names[0]


def _remarks(row: SuiteRow) -> Iterator[Row]:
    """Yield the reasons of a row's verdict, and the warnings that its sample is small."""
    yield from (("why", reason) for reason in dict.fromkeys(row.reasons))
    yield from (("warning", line) for line in list_remarks(row))
    if row.repaired:
        yield "asked", f"{count(row.repaired, 'sample')} repaired"
    told = (w for w in row.warnings if w.startswith(("small ", UNPAIRED)) or _FEW in w)
    # A row without pairs says so in its reason, under a rule that needs them.
    reasons = " ".join(row.reasons)
    yield from (("warning", line) for line in told if line not in reasons)


def list_remarks(row: SuiteRow) -> list[str]:
    """Return what must be seen of a row even if it passed; a proven change is the suite's own."""
    proven = describe_proven(row)
    told = [line for line in pick_remarks(row.warnings) if not line.startswith("small_drop")]
    return [*([proven] if proven else []), *map(two_rules.say_in_words, told)]
