"""Print a check of tool calls on a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.storage.file_names import TOOLS_RESULT
from serve_eval.report.layout import fit_tables, say
from serve_eval.report.text import clean
from serve_eval.schema import ToolCell, ToolCheck, ToolFinding, ToolProbe
from serve_eval.scorers._call_faults import CallFault
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, UNDECIDED

SHOWN, MOST = 48, 160
"""Characters of an example, and of a reply, that are shown."""
TINY = 1e-12
"""Smallest p-value that is printed."""
INDENT = 13
"""Width of the column with the outcomes."""
_STYLES = {
    "PASS": "bold green",
    "FAIL": "bold red",
    "IGNORED": "bold yellow",
    "UNSUPPORTED": "bold yellow",
}


def render(found: ToolCheck, out_dir: Path, console: Console) -> None:
    """Print the tables, the findings with examples, the remarks and the cost."""
    say(console, f"model {found.model}, {found.base_url}")
    say(console, f"{found.fingerprint.split()[0]} requests in each form at each load")
    _show_probes(found.unsupported, console)
    _show_probes(found.parameters, console)
    _show_cells(found.cells, console)
    _show_kinds(found.cells, found.kinds, console)
    _show_faults(found.cells, console)
    for one in found.findings:
        for line in describe_finding(one):
            _say_wrapped(line, console)
    for line in found.remarks:
        _say_wrapped(f"note: {line}", console)
    _show_end(found, out_dir, console)


def _say_wrapped(line: str, console: Console) -> None:
    """Print a line, with the rest of a long one indented below."""
    begin = " " * (len(line) - len(line.lstrip()))
    width = max(20, console.width)
    for part in textwrap.wrap(line, width, initial_indent="", subsequent_indent=f"{begin}  "):
        say(console, part)


def _show_probes(rows: Sequence[ToolProbe], console: Console) -> None:
    for row in rows:
        said = " ".join(clean(f"{row.name}: {row.said[:MOST]}").split())
        first, *more = textwrap.wrap(said, max(20, console.width - INDENT))
        console.print(Text(f"{row.outcome:<{INDENT}}", style=_STYLES[row.outcome]) + Text(first))
        for line in more:
            console.print(Text(" " * INDENT + line))


def _show_cells(cells: Sequence[ToolCell], console: Console) -> None:
    names = ("form", "load", "sound (95 %)", "failed", "prec.", "recall", "F1", "tokens", "s")
    rows = [
        [
            one.form,
            str(one.load),
            _share(one),
            str(one.failed),
            f"{one.precision:.3f}",
            f"{one.recall:.3f}",
            f"{one.f1:.3f}",
            str(one.prompt_tokens + one.completion_tokens),
            f"{one.wall_s:.1f}",
        ]
        for one in cells
    ]
    _print_table(names, rows, console)


def _share(one: ToolCell) -> str:
    if one.interval is None:
        return "-"
    low, high = one.interval
    return f"{100 * one.sound / one.scored:.1f} ({100 * low:.0f}-{100 * high:.0f})"


def _show_kinds(cells: Sequence[ToolCell], kinds: Sequence[str], console: Console) -> None:
    """Print the percentage without an error by kind of request; a column per pass."""
    rows = []
    for kind in kinds:
        counts = [one.kinds.get(kind, (0, 0)) for one in cells]
        shown = [f"{100 * sound / n:.0f}" if n else "-" for sound, n in counts]
        rows.append([kind, str(max((n for _, n in counts), default=0)), *shown])
    _print_table(("sound, %", "n", *map(_shorten, cells)), rows, console)


def _show_faults(cells: Sequence[ToolCell], console: Console) -> None:
    """Print the number of answers with each error; a column per pass."""
    rows = [
        [fault.value, *(str(one.faults.get(fault.value, 0)) for one in cells)]
        for fault in CallFault
        if any(one.faults.get(fault.value) for one in cells)
    ]
    if rows:
        _print_table(("errors", *map(_shorten, cells)), rows, console)


def _shorten(one: ToolCell) -> str:
    return f"{one.form[0]}{one.load}"


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    cells = [[*(Text(clean(cell)) for cell in row), Text()] for row in rows]
    console.print(*fit_tables((*names, ""), cells, console.width), sep="\n\n")


def describe_finding(one: ToolFinding) -> Iterator[str]:
    """Yield a finding in words: the error, where, how often, its meaning, and examples."""
    against = {
        "threshold": "more than the threshold",
        "lowest load": "more than at the lowest load",
        "whole answer": "more than in whole answers",
        "reference": "more than in the reference",
        "itself": "never before a call, and before nearly every text",
    }[one.against]
    if one.p is not None:
        proof = f"{against}, p {f'= {one.p:.1g}' if one.p >= TINY else f'< {TINY:g}'}"
    else:
        proof = against if one.against == "itself" else "and a model cannot cause one"
    yield f"FAIL  {one.fault} {one.where}: {one.count} of {one.scored}, {proof}"
    yield f"  {one.points_to}"
    for sample, said in one.examples:
        text = " ".join(said.split())
        yield f"  {sample}: {text[:SHOWN]!r}{'...' if len(text) > SHOWN else ''}"


def _show_end(found: ToolCheck, out_dir: Path, console: Console) -> None:
    words = {
        FAIL: "FAIL",
        UNDECIDED: "INCONCLUSIVE: too few requests have an answer",
        NOTHING_SCORED: "no request has an answer",
    }
    say(console, words.get(found.exit_code, "PASS: nothing found"))
    prompt = sum(one.prompt_tokens for one in found.cells)
    answer = sum(one.completion_tokens for one in found.cells)
    say(
        console,
        f"cost: {found.requests} requests, {prompt} prompt tokens, {answer} answer tokens,"
        f" {found.wall_s:.0f} s",
    )
    say(console, "sound: without any error; w1: whole at 1 in flight; s8: streamed at 8")
    say(console, f"result: {out_dir / TOOLS_RESULT}")
