"""What changes of one endpoint's requests should change no answer, and which did, for people."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serve_eval.report.terminal import say
from serve_eval.schema import Invariant, Invariants

_COLUMNS = ("task", "change", "prompts", "by itself", "changed", "identical", "p (Holm)", "")


def render(found: Invariants, out_dir: Path, console: Console) -> None:
    """Prints a row for each change and task."""
    say(console, f"model {found.model}, {found.base_url}")
    table = Table(box=None, pad_edge=False, show_header=True, header_style="bold")
    for i, column in enumerate(_COLUMNS):
        table.add_column(column, justify="left" if i in (0, 1, len(_COLUMNS) - 1) else "right", no_wrap=True)
    for one in found.results:
        outcome = Text("BROKEN", style="bold red") if one.broken else Text("holds", style="bold green")
        table.add_row(*map(Text, _row(one)), outcome)
    console.print(table)
    for name, what in {one.arm: one.what for one in found.results}.items():
        say(console, f"{name}: {what}")
    for name, why in found.skipped.items():
        say(console, f"{name}: not tried: {why}")
    say(console, "by itself: prompts answered otherwise when nothing is changed; changed: when that is")
    say(console, f"result: {out_dir / 'invariants.json'}")


def _row(one: Invariant) -> list[str]:
    agreed, changed = one.agreement, one.changed
    identical = f"{agreed.identical / agreed.prompts:.1%}" if agreed.prompts else "-"
    return [
        one.task,
        one.arm,
        str(changed.prompts),
        str(changed.own),
        str(changed.other),
        identical,
        f"{one.p_holm:.4f}",
    ]
