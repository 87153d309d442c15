"""Print which changes of requests changed the answers of an endpoint."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.storage.file_names import INVARIANTS
from serve_eval.report.layout import fit_tables, say, tell_rehearsal
from serve_eval.schema import Invariant, Invariants
from serve_eval.workflows.invariants.cache_use import describe_use
from serve_eval.workflows.invariants.pressure_use import describe_pressure

_COLUMNS = ("task", "change", "prompts", "by itself", "changed", "identical", "p (Holm)", "")


def render(found: Invariants, out_dir: Path, console: Console) -> None:
    """Print a row for each change and task."""
    tell_rehearsal(found.rehearsal, console)
    say(console, f"model {found.model}, {found.base_url}")
    cells = [_cells(one, withheld=found.rehearsal) for one in found.results]
    console.print(*fit_tables(_COLUMNS, cells, console.width), sep="\n\n")
    for name, what in {one.arm: one.what for one in found.results}.items():
        say(console, f"{name}: {what}")
    for one in found.results:
        if one.not_tested is not None:
            say(console, f"{one.arm}: {one.task}: not tested: {one.not_tested}")
        if one.cache is not None:
            say(console, f"{one.arm}: {one.task}: {describe_use(one.cache)}")
        if one.pressure is not None and one.not_tested is None:
            told = describe_pressure(one.pressure, broken=one.broken)
            say(console, f"{one.arm}: {one.task}: {told}")
        if one.fell is not None:
            say(console, f"{one.arm}: {one.task}: {_direction(one)}")
    for name, why in found.skipped.items():
        say(console, f"{name}: not tried: {why}")
    say(
        console,
        "by itself: prompts whose answer changes without the change; changed: with the change",
    )
    say(console, f"result: {out_dir / INVARIANTS}")


def _direction(one: Invariant) -> str:
    """Return how scores changed with the batch size, and what changed answers do not prove."""
    line = (
        f"with many requests in flight, {one.fell} prompts have worse scores and {one.rose} better"
        " ones"
    )
    if one.changed.more and not one.broken:
        return (
            f"{line}; {one.changed.other} answers change, {one.changed.own} do without the change:"
            " batch size changes numerics, so a sound server may differ here"
        )
    return line


def _cells(one: Invariant, *, withheld: bool) -> list[Text]:
    outcome = Text("not judged", style="bold yellow") if withheld else _outcome(one)
    return [*map(Text, _row(one)), outcome]


def _outcome(one: Invariant) -> Text:
    if one.broken:
        return Text("BROKEN", style="bold red")
    if one.fell is not None and one.changed.more:
        return Text("differs", style="bold yellow")
    if one.not_tested is not None:
        return Text("not tested", style="bold yellow")
    return Text("holds", style="bold green")


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
