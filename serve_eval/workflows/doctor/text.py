"""Print what was found on this machine."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from serve_eval.report.layout import wrap
from serve_eval.report.summary import badge
from serve_eval.report.summary.figures import count
from serve_eval.report.text import clean
from serve_eval.workflows.doctor.findings import DoctorFinding

MARKS = {"ok": ("ok", "green"), "absent": ("-", "dim"), "problem": ("problem", "bold red")}
NAME, MARK = 14, 9
"""Columns of a name, and of its state."""


def render(findings: Sequence[DoctorFinding], console: Console) -> None:
    """Print the conclusion, a line for each finding, and what mends the problems."""
    problems = [one for one in findings if one.state == "problem"]
    absent = sum(one.state == "absent" for one in findings)
    head = badge("PROBLEM", "bold red") if problems else badge("READY", "bold green")
    said = count(len(problems), "problem") if problems else "runs against endpoints work"
    console.print(head.append(f"  {said}; {count(absent, 'optional part')} absent"))
    for one in findings:
        mark, style = MARKS[one.state]
        label = Text(f" {one.name:<{NAME}}").append(f"{mark:<{MARK}}", style=style)
        lines = wrap(Text(clean(one.text)), max(20, console.width - NAME - MARK - 1))
        for i, line in enumerate(lines):
            space = Text(" " * (NAME + MARK + 1))
            console.print((label if not i else space).append_text(line), soft_wrap=True)
    for one in findings:
        if one.fix and one.state == "problem":
            console.print(Text(f" fix {one.name}: {clean(one.fix)}", style="bold"), soft_wrap=True)
