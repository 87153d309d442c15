"""Write a table of deployments by tasks in a chosen format: CSV, LaTeX, Markdown."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from serve_eval.report.ci import escape_text
from serve_eval.report.results_table.cell import LEFT_OUT, MISSING, UNPAIRED, ResultCell, name_seeds
from serve_eval.report.results_table.content import ResultsTable, TaskColumn, show_differences
from serve_eval.report.results_table.fitted import write_svg, write_text
from serve_eval.report.text import clean, disarm

FIGURES = (
    "value",
    "low",
    "high",
    "scored",
    "planned",
    "failed",
    "repaired",
    "estimate",
    "reference",
    "reference of",
    "difference",
    "difference low",
    "difference high",
    "p",
    "p holm",
    "q",
    "p table",
    "finding",
    "rule",
    "verdict",
    "waived",
    "run",
    "other runs",
    "no value because",
    "no difference because",
    "common prompts",
    "margin",
    "tests",
    "samples named",
    "sampling seeds",
    "mean over seeds",
    "sd over seeds",
    "verdicts of seeds",
    "error factor",
    "repeats",
    "pass at repeats",
    "vote",
)
"""The columns of each task, after its heading."""
DECIMALS = 10
"""Decimals of figures; a p-value has ten digits instead, since a small one is no rounding error."""
_REASONS = ("no value because", "no difference because")


def write_csv_table(table: ResultsTable) -> str:
    """Return a header and a row for each deployment, with every attribute that is known.

    Each task has the columns FIGURES. Numbers are not rounded; an empty cell is unknown. Lines end
    with CR LF.
    """
    names = list(dict.fromkeys(name for row in table.rows for name in row.attributes))
    text = io.StringIO(newline="")
    out = csv.writer(text, lineterminator="\r\n")
    heads = [f"{column.heading} {figure}" for column in table.columns for figure in FIGURES]
    out.writerow([_flatten(head) for head in ("model", *names, *heads)])
    for row in table.rows:
        attributes = [_flatten(row.attributes.get(name, "")) for name in names]
        cells = [one for cell in row.cells for one in _list_cells(cell)]
        out.writerow([_flatten(row.model), *attributes, *cells])
    return text.getvalue()


def _list_cells(cell: ResultCell | None) -> list[str]:
    if cell is None:
        return ["" if name not in _REASONS else LEFT_OUT for name in FIGURES]
    low, high = cell.interval or (None, None)
    least, most = cell.difference_interval or (None, None)
    tests = (cell.p, cell.p_holm, cell.q, cell.p_table)
    counts = (cell.scored, cell.planned, cell.failed, cell.repaired)
    return [
        *map(_write_number, (cell.value, low, high)),
        *("" if one is None else str(one) for one in counts),
        "yes" if cell.estimate else "no",
        _write_number(cell.reference),
        _flatten(cell.reference_name),
        *map(_write_number, (cell.difference, least, most)),
        *map(_write_p, tests),
        _flatten(cell.finding),
        _flatten(cell.rule),
        cell.outcome.value,
        "yes" if cell.waived else "no",
        _flatten(cell.run),
        str(cell.others),
        _flatten(cell.reason or cell.outcome.value) if cell.value is None else "",
        _flatten(cell.no_difference or UNPAIRED) if cell.difference is None else "",
        "" if cell.pairs is None else str(cell.pairs),
        _write_number(cell.margin),
        "" if cell.tests is None else str(cell.tests),
        "yes" if cell.chosen else "no",
        _flatten(cell.seeds or name_seeds(cell.averaged)),
        *map(_write_number, cell.over_seeds),
        _flatten("; ".join(f"{one.seed or 'none'} {one.outcome.value}" for one in cell.draws)),
        "" if cell.difference is None else _write_number(cell.inflation),
        str(cell.repeats),
        *map(_write_number, (cell.pass_at_repeats, cell.vote)),
    ]


def _write_number(number: float | None) -> str:
    """Return a figure without the dust of sums of floats, such as 5e-16 for 0."""
    return "" if number is None else f"{round(number, DECIMALS) + 0.0:.10g}"


def _write_p(number: float | None) -> str:
    return "" if number is None else f"{number:.10g}"


def _flatten(text: str) -> str:
    """Return a text on one line that no terminal and no spreadsheet runs."""
    return disarm(" ".join(clean(text).split()))


_ESCAPES = {
    "\\": "\\textbackslash{}",
    "~": "\\textasciitilde{}",
    "^": "\\textasciicircum{}",
    "<": "\\textless{}",
    ">": "\\textgreater{}",
    "|": "\\textbar{}",
    "`": "\\textasciigrave{}",
    '"': "''",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    **{sign: f"\\{sign}" for sign in "%_#$&{}"},
}
"""Signs that LaTeX would run, and those that it would take as an argument of the line before."""
_JOINED = re.compile(r"([-',])(?=\1)")
"""Signs of which LaTeX joins two to another sign."""
_MINUS = re.compile(r"(?<![\w.])-(?=\d)")
"""The sign of a negative number, which text would print as a hyphen."""
_NUMBER = re.compile(r"-\d+(?:\.\d+)?")
_OTHER = (
    '\\providecommand\\otherchar[1]{\\ifdefined\\Umathchar\\symbol{\\string"#1}\\else U+#1\\fi}'
)
"""A command for characters outside ASCII, which only XeLaTeX and LuaLaTeX can print all."""
_PARTS = "r@{\\ }r@{\\ }l"
"""The columns of a task: its value, its interval and its marks."""


def write_latex(table: ResultsTable) -> str:
    """Return an environment `table` with rules of booktabs. A name is text, whatever it holds."""
    return "".join(f"{line}\n" for line in _list_lines(table))


def _list_lines(table: ResultsTable) -> Iterator[str]:
    heads = [escape_latex(head) for head in table.heads]
    yield "% Needs \\usepackage{booktabs}. Characters outside ASCII need XeLaTeX or LuaLaTeX."
    yield _OTHER
    yield "\\begin{table}"
    yield "\\centering"
    yield f"\\caption{{{escape_latex(table.caption)}.}}"
    yield f"\\label{{tab:{'differences' if table.against else 'results'}}}"
    yield f"\\begin{{tabular}}{{{'l' * len(heads)}{_PARTS * len(table.columns)}}}"
    yield "\\toprule"
    yield _write_row([*heads, *(_span(column.heading) for column in table.columns)])
    yield _write_row([*[""] * len(heads), *(_span(one.size) for one in table.columns)])
    yield "\\midrule"
    for row in table.rows:
        pairs = zip(table.columns, row.cells, strict=True)
        cells = [part for column, cell in pairs for part in _list_parts(column, cell)]
        yield _write_row([*map(_write_name, table.name(row)), *map(_write_figures, cells)])
    yield "\\bottomrule"
    yield "\\end{tabular}"
    legend = [f"{mark}: {meaning}" for mark, meaning in table.list_legend()]
    for line in (*filter(None, ["; ".join(legend)]), *table.list_notes(plain=True)):
        yield f"\\par\\footnotesize {escape_latex(line)}"
    yield "\\end{table}"


def _span(text: str) -> str:
    return f"\\multicolumn{{3}}{{c}}{{{escape_latex(text)}}}"


def _list_parts(column: TaskColumn, cell: ResultCell | None) -> tuple[str, str, str]:
    """Return the value, the interval and the marks of a cell, which are aligned apart."""
    if cell is None:
        return MISSING, "", ""
    return cell.number(column.metric), cell.ends(column.metric), " ".join(cell.marks)


def _write_figures(text: str) -> str:
    """Return numbers with the minus sign of mathematics."""
    return _MINUS.sub("$-$", escape_latex(text))


def _write_name(text: str) -> str:
    """Return a name as it is, or an attribute that is a number as one."""
    return _write_figures(text) if _NUMBER.fullmatch(text) else escape_latex(text) or MISSING


def _write_row(cells: list[str]) -> str:
    return f"{' & '.join(cells)} \\\\"


def escape_latex(text: str) -> str:
    """Return a text on one line that LaTeX prints as it is."""
    flat = " ".join(clean(text.encode(errors="replace").decode()).split())
    return _JOINED.sub(r"\1{}", "".join(map(_escape, flat)))


def _escape(sign: str) -> str:
    if ord(sign) > 126:
        return f"\\otherchar{{{ord(sign):04X}}}"
    return _ESCAPES.get(sign, sign)


def write_markdown_table(table: ResultsTable) -> str:
    """Return the caption, the table, its legend and its notes."""
    return "".join(f"{line}\n" for line in list_table_lines(table))


def list_table_lines(table: ResultsTable) -> Iterator[str]:
    """Yield the lines of the caption, the table, its legend and its notes."""
    yield escape_text(table.caption)
    yield ""
    yield from _list_rows(table)
    yield ""
    yield from (f"* {escape_text(mark)}: {meaning}" for mark, meaning in table.list_legend())
    yield from (f"* {escape_text(note)}" for note in table.list_notes())


def _list_rows(table: ResultsTable) -> Iterator[str]:
    heads = [*table.heads, *(_head(column) for column in table.columns)]
    yield _write_line(list(map(escape_text, heads)))
    yield _write_line(["---"] * len(heads))
    for row in table.rows:
        pairs = zip(table.columns, row.cells, strict=True)
        cells = [MISSING if cell is None else cell.write(column.metric) for column, cell in pairs]
        # Two tildes in a row would strike out what is between them, two stars would slant it.
        shown = [cell.replace("~", "\\~").replace("*", "\\*") for cell in cells]
        yield _write_line([*(escape_text(name) or MISSING for name in table.name(row)), *shown])


def _head(column: TaskColumn) -> str:
    told = column.heading.endswith((f"({column.size})", f", {column.size})"))
    return column.heading if told else f"{column.heading} ({column.size})"


def _write_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


_WRITERS: Final[Mapping[str, Callable[[ResultsTable], str]]] = {
    "table": write_text,
    "csv": write_csv_table,
    "markdown": write_markdown_table,
    "latex": write_latex,
    "svg": write_svg,
}
FORMATS = tuple(_WRITERS)


def write_table(table: ResultsTable, name: str) -> str:
    """Return a table in the format of a name of FORMATS. CSV has values and differences."""
    return _WRITERS[name](table if name == "csv" else show_differences(table))
