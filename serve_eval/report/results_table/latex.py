"""Write a table of deployments by tasks for LaTeX, with the package booktabs. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator

from serve_eval.report.results_table.cell import MISSING, ResultCell
from serve_eval.report.results_table.content import ResultsTable, TaskColumn
from serve_eval.report.text import clean

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
