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
from serve_eval.report.layout import fit_tables, tell_rehearsal
from serve_eval.report.summary.headline import badge
from serve_eval.report.summary.print_rows import print_rows
from serve_eval.report.text import clean
from serve_eval.schema import LoadBracket, LoadPoint, LoadSurface, LoadTask
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS, UNDECIDED
from serve_eval.workflows.load.judging import ALPHA, SCORE_ALPHA, find_exit_code, is_inconclusive

Row = tuple[str, str]

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
OUTCOMES = {
    FAIL: ("FAIL", "bold red"),
    PASS: ("PASS", "bold green"),
    UNDECIDED: ("INCONCLUSIVE", "bold yellow"),
    NOTHING_SCORED: ("ERROR", "bold red"),
}
"""The verdict on a task by its exit code, and its style."""
_UNPROVED = ("likely worse", "likely better", "holds")


def render(found: LoadSurface, out_dir: Path, console: Console, *, brief: bool = False) -> None:
    """Print the conclusion, the loads as a table, and the evidence, for each task.

    `brief`: only the conclusions.
    """
    tell_rehearsal(found.rehearsal, console)
    for task in found.tasks:
        bisected = found.bracket is not None and found.bracket.task == task.task
        console.print(_headline(found, task, bisected=bisected), soft_wrap=True)
        if brief:
            continue
        print_rows(console, [("asked", _describe_prompts(task))])
        cells = [list_cells(point, broken=point.load in task.broken) for point in task.points]
        console.print(*fit_tables(COLUMNS, cells, console.width), sep="\n\n")
        print_rows(console, describe_task(task))
    if brief:
        return
    if found.bracket is not None:
        _show_bracket(found.bracket, console)
    order = ", ".join(map(str, found.order))
    print_rows(
        console,
        (
            *(("warning", line) for line in found.warnings),
            ("order", f"{order}; {found.requests:,} requests"),
            ("columns", "lost, won: scores that fell and rose from the first load of the table"),
            ("", f"p: exact, corrected for all loads; at most {SCORE_ALPHA:g} accuses"),
            ("", "TTFT, p99: median and 99th percentile of the time to the first token, in ms"),
            ("run", f"{out_dir / LOAD_RESULT}: {found.model}, {found.base_url}"),
        ),
    )


def name_outcome(found: LoadSurface, code: int) -> tuple[str, str]:
    """Return the verdict and its style; a rehearsal passes and fails nothing."""
    return OUTCOMES[UNDECIDED if found.rehearsal and code in (PASS, FAIL) else code]


def _headline(found: LoadSurface, task: LoadTask, *, bisected: bool) -> Text:
    """Return the verdict on a task, and the loads that are broken."""
    outcome, style = name_outcome(found, find_exit_code([task]))
    words = task.words if found.bracket is None or not bisected else name_edge(found.bracket)
    return badge(outcome, style).append(f"  {clean(task.task)}  {clean(words)}")


def _describe_prompts(task: LoadTask) -> str:
    lowest = next(p.load for p in task.points if p.outcome != "gave up")
    asked = max(p.scored + p.failed for p in task.points)
    return f"{asked:,} prompts at each load, each against load {lowest}"


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


def describe_task(task: LoadTask) -> Iterator[Row]:
    """Yield what the loads show of a task, apart from its conclusion."""
    known = [p.excluded for p in task.points if p.excluded is not None and p.outcome == "holds"]
    if task.words == NOTHING and is_inconclusive(task):
        yield "why", "too few answers to conclude anything"
    elif task.words == NOTHING and known:
        yield (
            "so",
            f"a loss of {max(known):.1f} points or more is excluded at each load (95 % each)",
        )
    if task.q is not None and task.q_p is not None and task.df > 1:
        yield (
            "Cochran",
            f"Q over all loads {task.q:.1f} with {task.df} degrees of freedom, p = {task.q_p:.2g}",
        )
    if task.words == NOTHING and task.q_p is not None and task.q_p <= ALPHA:
        yield (
            "but",
            "the loads may differ, but none is proved to: ask more prompts with --limit",
        )
    for point in task.points:
        if point.outcome in ("worse", "better", "likely worse", "likely better"):
            yield from _describe_places(point)


def _describe_places(point: LoadPoint) -> Iterator[Row]:
    places = point.places
    if places is None:
        return
    yield (
        f"at {point.load}",
        f"{point.changed} answers changed; first different {places.unit}, from 0:",
    )
    yield from (("", line.strip()) for line in draw_first_divergences(places))
    yield "", describe_first_divergences(places)
    if reading := read_first_divergences(places):
        yield "", reading


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
    print_rows(console, describe_bracket(bracket))


def _say_changes(changes: tuple[int, int]) -> str:
    return f"lost {changes[0]}, won {changes[1]}"


def name_edge(bracket: LoadBracket) -> str:
    """Return the loads between which a bisection found the answers to break."""
    good, bad = bracket.good, bracket.bad
    if abs(good - bad) > 1:
        return f"sound at {good}, broken at {bad}, not known between"
    edge = f"broken from {bad} on" if good < bad else f"broken up to {bad}"
    return f"{edge}, sound at {good}"


def describe_bracket(bracket: LoadBracket) -> Iterator[Row]:
    """Yield where a bisection found the answers to break."""
    yield "edge", f"{bracket.task}: {name_edge(bracket)} (the level is {bracket.level:g})"
    if bracket.undecided is not None:
        yield "but", f"load {bracket.undecided} is not decided: ask more prompts with --limit"
    yield "note", "a load that is broken alone, between loads that are sound, may be missed"
