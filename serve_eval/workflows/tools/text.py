"""Print a check of tool calls on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.storage.file_names import TOOLS_RESULT
from serve_eval.report.layout import fit_tables, tell_rehearsal
from serve_eval.report.summary.headline import badge
from serve_eval.report.summary.print_rows import print_rows
from serve_eval.report.text import clean
from serve_eval.schema import ToolCheck, ToolFinding
from serve_eval.scorers._call_faults import CallFault
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS, UNDECIDED
from serve_eval.workflows.tools.tables import tabulate_faults, tabulate_kinds, tabulate_passes

Row = tuple[str, str]

SHOWN, MOST = 44, 160
"""Characters of an example, and of a reply, that are shown."""
TINY = 1e-12
"""Smallest p-value that is printed."""
OUTCOMES = {
    FAIL: ("FAIL", "bold red"),
    PASS: ("PASS", "bold green"),
    UNDECIDED: ("INCONCLUSIVE", "bold yellow"),
    NOTHING_SCORED: ("ERROR", "bold red"),
}
"""The verdict by the exit code, and its style."""


def render(found: ToolCheck, out_dir: Path, console: Console) -> None:
    """Print the conclusion, the findings with examples, the tables, and the rest."""
    tell_rehearsal(found.rehearsal, console)
    outcome, style = find_outcome(found)
    words = clean(f"  tools  {conclude(found)}")
    console.print(badge(outcome, style).append(words), soft_wrap=True)
    print_rows(console, [row for one in found.findings for row in describe_finding(one)])
    print_rows(console, list_probes(found))
    number = found.fingerprint.split()[0]
    print_rows(console, [("asked", f"{number} requests in each form at each load")])
    for names, rows in (tabulate_passes(found), tabulate_kinds(found), tabulate_faults(found)):
        if rows:
            _print_table(names, rows, console)
    print_rows(console, [*describe_rest(found), *_list_last(found, out_dir)])


def find_outcome(found: ToolCheck) -> tuple[str, str]:
    """Return the verdict and its style; a rehearsal passes nothing."""
    withheld = found.rehearsal and found.exit_code == PASS
    return OUTCOMES[UNDECIDED if withheld else found.exit_code]


def conclude(found: ToolCheck) -> str:
    """Return what the check found, in a few words."""
    failing = [row.name for row in found.parameters if row.outcome == "FAIL"]
    said = [f"{one.fault} {one.where}" for one in found.findings] + failing
    if said:
        return said[0] + (f", and {len(said) - 1} more" if len(said) > 1 else "")
    return {
        PASS: "nothing found",
        FAIL: "something required is missing",
        UNDECIDED: _say_undecided(found),
        NOTHING_SCORED: "no request has an answer",
    }[found.exit_code]


def _say_undecided(found: ToolCheck) -> str:
    if all(2 * one.faults.get(CallFault.CUT, 0) <= one.scored for one in found.cells):
        return "too few requests have an answer"
    return "most answers were cut: raise the limit with --set tool_calls.max_tokens=N"


def describe_finding(one: ToolFinding) -> Iterator[Row]:
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
    yield "error", f"{one.fault} {one.where}: {one.count} of {one.scored}"
    yield "", proof
    yield "look at", one.points_to
    for sample, said in one.examples:
        text = " ".join(said.split())
        yield "such as", f"{sample}: {text[:SHOWN]}{'...' if len(text) > SHOWN else ''}"


def list_probes(found: ToolCheck) -> Iterator[Row]:
    """Yield the kinds of requests and the fields that are not as they should be."""
    labels = {"FAIL": "error", "IGNORED": "ignored", "UNSUPPORTED": "lacks"}
    rows = (*found.unsupported, *found.parameters)
    for row in rows:
        if row.outcome != "PASS":
            yield labels[row.outcome], f"{row.name}: {' '.join(row.said.split())[:MOST]}"
    passed = sum(row.outcome == "PASS" for row in rows)
    yield "fields", f"{passed} of {len(found.parameters)} fields work or are refused as they should"


def _print_table(names: Sequence[str], rows: Sequence[Sequence[str]], console: Console) -> None:
    cells = [[*(Text(clean(cell)) for cell in row), Text()] for row in rows]
    console.print(*fit_tables((*names, ""), cells, console.width), sep="\n\n")


def describe_rest(found: ToolCheck) -> Iterator[Row]:
    """Yield the remarks, which do not accuse the server, and the cost of the check."""
    yield from (("note", line) for line in found.remarks)
    prompt = sum(one.prompt_tokens for one in found.cells)
    answer = sum(one.completion_tokens for one in found.cells)
    yield (
        "cost",
        f"{found.requests:,} requests, {prompt:,} prompt tokens, {answer:,} answer tokens,"
        f" {found.wall_s:.0f} s",
    )


def _list_last(found: ToolCheck, out_dir: Path) -> Iterator[Row]:
    yield "columns", "sound: without any error; w1: whole at 1 in flight; s8: streamed at 8"
    yield "run", f"{out_dir / TOOLS_RESULT}: {found.model}, {found.base_url}"
