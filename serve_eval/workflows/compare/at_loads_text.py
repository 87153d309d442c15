"""Print a comparison at several loads."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.storage.file_names import LOAD_COMPARISON
from serve_eval.report.layout import fit_tables
from serve_eval.report.summary.headline import badge, style_of
from serve_eval.report.summary.print_rows import print_rows
from serve_eval.report.summary.table import ORDER
from serve_eval.report.text import clean
from serve_eval.schema import LoadComparison, TaskAtLoad

_COLUMNS = ("load", "A", "B", "lost", "won", "no answer", "p (Holm)", "")


def render_loads(found: LoadComparison, out_dir: Path, console: Console) -> None:
    """Print a conclusion and a table for each task."""
    for task, words in found.words.items():
        ours = [one for one in found.tasks if one.task == task]
        outcome = next(one for one in ORDER if one in {at.outcome for at in ours})
        line = badge(outcome.value, style_of(outcome))
        console.print(line.append(f"  {clean(task)}  {clean(words)}"), soft_wrap=True)
        console.print(
            *fit_tables(_COLUMNS, list(map(_list_cells, ours)), console.width), sep="\n\n"
        )
    print_rows(
        console,
        (
            *(("warning", clean(line)) for line in found.warnings),
            ("order", ", ".join(map(str, found.order))),
            ("columns", "lost, won: scores that fell and rose from A to B; no answer: of A, of B"),
            ("run", f"{out_dir / LOAD_COMPARISON}; each comparison: {out_dir}/LOAD"),
        ),
    )


def _list_cells(one: TaskAtLoad) -> list[Text]:
    p = one.p if one.p_holm is None else one.p_holm
    shown = [
        str(one.load),
        *("-" if value is None else f"{value:.1f}" for value in (one.a, one.b)),
        str(one.lost),
        str(one.won),
        f"{one.failed[0]}, {one.failed[1]}",
        "-" if p is None else f"{p:.4f}",
    ]
    return [*map(Text, shown), Text(one.outcome.value, style=style_of(one.outcome))]
