"""Print a search: a table of its steps, the conclusion, what was spent, and the next command."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from serve_eval.plugins.withheld import name_folders
from serve_eval.report.layout import say
from serve_eval.report.text import clean
from serve_eval.schema import Bisection, BisectionResult, BisectionStep, BisectionSuspect
from serve_eval.shell_words import quote_path
from serve_eval.workflows.bisect.configurations import Configurations
from serve_eval.workflows.bisect.search import (
    BUDGET,
    EXHAUSTED,
    FOUND,
    MOST_UNDECIDED,
    UNCONFIRMED,
    WEAK,
)

_STYLES = {
    BisectionResult.WORSE: "bold red",
    BisectionResult.SAME: "green",
    BisectionResult.UNDECIDED: "bold yellow",
    BisectionResult.NO_START: "bold yellow",
}
_HEADER = ("step", "configuration", "result", "answers", "leading hypothesis", "posterior")


def render(state: Bisection, found: Configurations, out_dir: Path, console: Console) -> None:
    """Print what is known at the end of a search."""
    console.print(_draw_table(state, found))
    for line in (*_explain_steps(state), *conclude(state, found), *_spent(state)):
        say(console, line)
    say(console, f"folder: {out_dir}")
    if (command := suggest(state, found, out_dir)) is not None:
        say(console, f"next: {command}")


def _draw_table(state: Bisection, found: Configurations) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in _HEADER:
        if name in ("step", "answers", "posterior"):
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(name, no_wrap=name == "result", overflow="fold")
    for step in state.steps:
        cells = [Text(clean(cell)) for cell in _list_cells(step, found)]
        if step.result in _STYLES:
            cells[_HEADER.index("result")].stylize(_STYLES[step.result])
        table.add_row(*cells)
    return table


def _list_cells(step: BisectionStep, found: Configurations) -> tuple[str, ...]:
    asked = f"{step.asked:,}" if step.result is not BisectionResult.NO_START else "-"
    if step.result is BisectionResult.REFERENCE:
        return (str(step.number), found.first, "reference", asked, "", "")
    result = "not finished" if step.result is None else step.result.value
    posterior = "" if step.posterior is None else show_share(step.posterior)
    name = found.describe(step.configuration)
    return (str(step.number), name, result, asked, step.leading, posterior)


def show_share(share: float) -> str:
    """Return a probability with three digits, never rounded to 1."""
    return ">.999" if share > 0.9995 else f"{share:.3f}".removeprefix("0")


def _explain_steps(state: Bisection) -> Iterator[str]:
    for step in state.steps:
        if step.reason and step.result in (BisectionResult.NO_START, BisectionResult.UNDECIDED):
            yield f"step {step.number}: {step.result.value}: {step.reason}"


def conclude(state: Bisection, found: Configurations) -> Iterator[str]:
    """Yield the conclusion and, if it is undecided, the hypotheses that are left."""
    if state.margin is not None:
        told = ", ".join(state.tasks)
        yield (
            f"worse: a drop above {state.margin:.3g} points ({told}); each result errs with at most"
            f" {f'{state.alpha:g}'.removeprefix('0')}"
        )
    if not state.suspects:
        return
    first = state.suspects[0]
    sure = f"(posterior {show_share(first.posterior)})"
    if state.ending == FOUND:
        yield f"{_name_culprit(first, state, found)} {sure}"
        return
    yield f"undecided: {_explain_end(state, found)}"
    if state.ending != UNCONFIRMED:
        rest = "; ".join(f"{one.text} {show_share(one.posterior)}" for one in state.suspects)
        yield f"most probable: {rest}"


def _name_culprit(first: BisectionSuspect, state: Bisection, found: Configurations) -> str:
    names = list(first.members)
    if first.kind == "none":
        what = "step" if state.ordered else "option"
        return f"no {what}: {found.last} has no such drop against {found.first}"
    if first.kind == "outside":
        return (
            f"undecided: {found.first} is worse when it is asked again, so something that is not"
            f" in the {'steps' if state.ordered else 'options'} has changed"
        )
    if first.kind == "other":
        return "undecided: no step, option or set of options explains these results"
    if first.kind == "from":
        change = next(one for one in state.changes if one.name == names[0])
        return f"culprit: {names[0]}, the first bad step; {change.good} is the last good one"
    shown = ", ".join(
        f"{one.name} ({one.good} -> {one.bad})" for one in state.changes if one.name in names
    )
    if first.kind == "either":
        return f"culprits: each of these fails alone: {shown}"
    if len(names) == 1:
        return f"culprit: {shown}"
    return f"culprits: these fail only together: {shown}"


def _explain_end(state: Bisection, found: Configurations) -> str:
    if state.ending == BUDGET:
        return "the budget is spent"
    if state.ending == UNCONFIRMED:
        drop = state.steps[1].difference
        shown = "" if drop is None else f"; the difference is {drop:+.3g} points"
        return f"{found.last} is neither worse than {found.first} nor the same{shown}"
    if state.ending == WEAK:
        return (
            f"{MOST_UNDECIDED} steps in a row were undecided: the drop is too small for"
            f" {state.samples} samples"
        )
    if state.ending == EXHAUSTED:
        return "no further configuration would tell enough"
    return "the search has not ended"


def _spent(state: Bisection) -> Iterator[str]:
    parts = [_count(state.starts, "server start"), _count(state.requests, "answer")]
    if state.gpu_hours is not None:
        parts.append(f"{state.gpu_hours:.2f} GPU hours")
    lost = sum(step.result is BisectionResult.NO_START for step in state.steps)
    if lost:
        parts.append(f"{_count(lost, 'configuration')} cannot start")
    yield f"spent: {', '.join(parts)}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def suggest(state: Bisection, found: Configurations, out_dir: Path) -> str | None:
    """Return the command that comes next, or None."""
    if state.ending == BUDGET:
        return "the same command with a larger budget and the same -o goes on"
    if state.ending in (UNCONFIRMED, WEAK):
        return "a larger --limit, or a larger --margin, with another -o"
    if state.exit_code != 1:
        return None
    worse = [step for step in state.steps if step.result is BisectionResult.WORSE]
    if found.space.ordered:
        last = min(worse, key=lambda step: step.configuration)
    else:
        last = min(worse, key=lambda step: (step.configuration.bit_count(), step.number))
    folders = name_folders(found.good.include_path)
    return f"serve-eval diagnose {quote_path(out_dir / last.folder)}{folders}"
