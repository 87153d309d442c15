"""Write the report as an HTML page with the text of the terminal."""

from __future__ import annotations

import html
import io
import re
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI

from serve_eval.evaluation.storage.file_names import PAGE_FILE
from serve_eval.evaluation.storage.private_files import write_private
from serve_eval.report.course import picture
from serve_eval.report.terminal import render
from serve_eval.schema import Report

WIDTH = 160
_FORM = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ color: {foreground}; background: {background}; margin: 2em; }}
pre {{ font: 14px/1.4 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; }}
{stylesheet}
</style>
</head>
<body>
<pre>{code}</pre>
{pictures}
</body>
</html>
"""
_OURS = re.compile(r"\{(title|pictures)\}")
"""Placeholders that are filled here. Rich fills the others."""


def write_page(report: Report, out_dir: Path) -> Path:
    """Write the page into the run folder and return its path.

    Raises RunFolderError if it cannot be written.
    """
    stream = io.StringIO()
    console = Console(
        record=True,
        file=stream,
        width=WIDTH,
        force_terminal=True,
        color_system="standard",
        emoji=False,
    )
    render(report, out_dir, console)
    outcomes = ", ".join(f"{task.result.task}: {task.verdict.outcome}" for task in report.tasks)
    pictures = "\n".join(
        picture(task.result.task, one) for task in report.tasks for one in task.degradations
    )
    texts = {"title": html.escape(outcomes), "pictures": pictures}
    form = _OURS.sub(lambda place: texts[place[1]].replace("{", "{{").replace("}", "}}"), _FORM)
    path = out_dir / PAGE_FILE
    write_private(path, console.export_html(theme=DIMMED_MONOKAI, code_format=form).encode())
    return path
