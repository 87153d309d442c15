"""Print a comparison at several loads."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.storage.file_names import LOAD_COMPARISON
from serve_eval.report.layout import fit_tables, say
from serve_eval.schema import LoadComparison, TaskAtLoad, VerdictOutcome

_COLUMNS = ("load", "A", "B", "lost", "won", "no answer", "p (Holm)", "")
_STYLES = {VerdictOutcome.PASS: "bold green", VerdictOutcome.FAIL: "bold red"}


def render_loads(found: LoadComparison, out_dir: Path, console: Console) -> None:
    """Print a table and a conclusion for each task."""
    for task, words in found.words.items():
        say(console, f"{task}: B against A at each number of requests in flight")
        cells = [_list_cells(one) for one in found.tasks if one.task == task]
        console.print(*fit_tables(_COLUMNS, cells, console.width), sep="\n\n")
        say(console, f"{task}: {words}")
    say(console, f"asked in the order {', '.join(map(str, found.order))}")
    say(console, "lost, won: scores that fell, rose from A to B; no answer: of A, of B")
    say(console, f"result: {out_dir / LOAD_COMPARISON}; each comparison: {out_dir}/LOAD")


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
    return [*map(Text, shown), Text(one.outcome.value, style=_STYLES.get(one.outcome, ""))]
