"""What changes of one endpoint's requests should change no answer, and which did, for people."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.report.terminal import fitted, say
from serve_eval.schema import Invariant, Invariants

_COLUMNS = ("task", "change", "prompts", "by itself", "changed", "identical", "p (Holm)", "")


def render(found: Invariants, out_dir: Path, console: Console) -> None:
    """Prints a row for each change and task."""
    say(console, f"model {found.model}, {found.base_url}")
    console.print(*fitted(_COLUMNS, list(map(_cells, found.results)), console.width), sep="\n\n")
    for name, what in {one.arm: one.what for one in found.results}.items():
        say(console, f"{name}: {what}")
    for name, why in found.skipped.items():
        say(console, f"{name}: not tried: {why}")
    say(console, "by itself: prompts answered otherwise when nothing is changed; changed: when that is")
    say(console, f"result: {out_dir / 'invariants.json'}")


def _cells(one: Invariant) -> list[Text]:
    outcome = Text("BROKEN", style="bold red") if one.broken else Text("holds", style="bold green")
    return [*map(Text, _row(one)), outcome]


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
