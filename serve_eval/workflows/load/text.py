"""Print accuracy over the number of requests in flight."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text

from serve_eval.evaluation.agreement.first_divergence import (
    describe_first_divergences,
    draw_first_divergences,
    read_first_divergences,
)
from serve_eval.evaluation.agreement.load_words import NOTHING
from serve_eval.evaluation.storage.file_names import LOAD_RESULT
from serve_eval.report.layout import fit_tables, say
from serve_eval.schema import LoadBracket, LoadPoint, LoadSurface, LoadTask
from serve_eval.workflows.load.judging import ALPHA, SCORE_ALPHA, is_inconclusive

COLUMNS = ("load", "value (95 %)", "failed", "lost", "won", "p", "TTFT, p99", "right/s", "")
_STEP_COLUMNS = ("load", "asked", "from the sound end", "to the broken end", "")
_SAID = {
    "lowest": ("", ""),
    "holds": ("holds", "bold green"),
    "worse": ("lower", "bold yellow"),
    "better": ("higher", "bold yellow"),
    "likely worse": ("lower?", "bold yellow"),
    "likely better": ("higher?", "bold yellow"),
    "fails": ("FAILS", "bold red"),
    "gave up": ("GAVE UP", "bold red"),
}
"""The word for the state of a load that is not among the broken ones, and its style."""
_UNPROVED = ("likely worse", "likely better", "holds")


def render(found: LoadSurface, out_dir: Path, console: Console) -> None:
    """Print a table and a conclusion for each task."""
    say(console, f"model {found.model}, {found.base_url}")
    for task in found.tasks:
        lowest = next(p.load for p in task.points if p.outcome != "gave up")
        asked = max(p.scored + p.failed for p in task.points)
        say(console, f"{task.task}: {asked} prompts at each load, each against load {lowest}")
        cells = [list_cells(point, broken=point.load in task.broken) for point in task.points]
        console.print(*fit_tables(COLUMNS, cells, console.width), sep="\n\n")
        bisected = found.bracket is not None and found.bracket.task == task.task
        for line in describe_task(task, bisected=bisected):
            say(console, line)
    if found.bracket is not None:
        _show_bracket(found.bracket, console)
    for line in found.warnings:
        say(console, f"warning: {line}")
    say(
        console,
        f"asked in the order {', '.join(map(str, found.order))}; {found.requests} requests",
    )
    say(
        console,
        f"lost, won: scores that fell, rose; p: exact, corrected for all loads; at most"
        f" {SCORE_ALPHA:g} accuses",
    )
    say(console, "TTFT, p99: median and 99th percentile of the time to the first token, in ms")
    say(console, f"result: {out_dir / LOAD_RESULT}")


def list_cells(point: LoadPoint, *, broken: bool) -> list[Text]:
    said, style = _SAID[point.outcome]
    if broken:
        said, style = "broken?" if point.outcome in _UNPROVED else "BROKEN", "bold red"
    times = point.ttft_s or {}
    tested = point.outcome not in ("lowest", "gave up")
    shown = [
        str(point.load),
        _value(point),
        str(point.failed),
        str(point.lost) if tested else "",
        str(point.won) if tested else "",
        f"{point.p_holm:.4f}" if tested else "",
        f"{1000 * times['p50']:.0f}, {1000 * times['p99']:.0f}" if times else "-",
        "-" if point.right_per_s is None else f"{point.right_per_s:.1f}",
    ]
    return [*map(Text, shown), Text(said, style=style)]


def _value(point: LoadPoint) -> str:
    if point.value is None:
        return "-"
    if point.interval is None:
        return f"{point.value:.1f}"
    low, high = point.interval
    return f"{point.value:.1f} ({low:.0f}-{high:.0f})"


def describe_task(task: LoadTask, *, bisected: bool) -> Iterator[str]:
    if not bisected:
        yield f"{task.task}: {task.words}"
    if task.q is not None and task.q_p is not None and task.df > 1:
        yield (
            f"{task.task}: Cochran's Q over all loads: {task.q:.1f} with {task.df} degrees of"
            f" freedom, p = {task.q_p:.2g}"
        )
    if task.words == NOTHING and task.q_p is not None and task.q_p <= ALPHA:
        yield (
            f"{task.task}: the loads may differ, but none is proved to: ask more prompts with"
            " --limit"
        )
    known = [p.excluded for p in task.points if p.excluded is not None and p.outcome == "holds"]
    if task.words == NOTHING and is_inconclusive(task):
        yield f"{task.task}: too few answers to conclude anything"
    elif task.words == NOTHING and known:
        yield (
            f"{task.task}: a loss of {max(known):.1f} points or more is excluded at each load (95 %"
            " each)"
        )
    for point in task.points:
        if point.outcome in ("worse", "better", "likely worse", "likely better"):
            yield from _describe_places(task.task, point)


def _describe_places(task: str, point: LoadPoint) -> Iterator[str]:
    places = point.places
    if places is None:
        return
    yield (
        f"{task}: load {point.load}: {point.changed} answers changed; first different"
        f" {places.unit}, from 0:"
    )
    yield from draw_first_divergences(places)
    yield f"{task}: load {point.load}: {describe_first_divergences(places)}"
    if reading := read_first_divergences(places):
        yield f"  {reading}"


def _show_bracket(bracket: LoadBracket, console: Console) -> None:
    rows = [
        [
            Text(str(step.load)),
            Text(str(step.askings)),
            Text(_say_changes(step.against_good)),
            Text(_say_changes(step.against_bad)),
            Text(step.finding),
        ]
        for step in bracket.steps
    ]
    if rows:
        console.print(*fit_tables(_STEP_COLUMNS, rows, console.width), sep="\n\n")
    for line in describe_bracket(bracket):
        say(console, line)


def _say_changes(changes: tuple[int, int]) -> str:
    return f"lost {changes[0]}, won {changes[1]}"


def describe_bracket(bracket: LoadBracket) -> Iterator[str]:
    """Yield where a bisection found the answers to break."""
    task, good, bad = bracket.task, bracket.good, bracket.bad
    if bracket.undecided is not None:
        yield f"{task}: load {bracket.undecided} is not decided: ask more prompts with --limit"
    if abs(good - bad) == 1:
        edge = f"broken from {bad} on" if good < bad else f"broken up to {bad}"
        yield f"{task}: {edge}, sound at {good} (the level of the bracket is {bracket.level:g})"
    else:
        yield (
            f"{task}: sound at {good}, broken at {bad}, not known between (the level of the bracket"
            f" is {bracket.level:g})"
        )
    yield f"{task}: a load that is broken alone, between loads that are sound, may be missed"
