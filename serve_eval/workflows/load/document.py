"""Make the document of a check over loads. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from serve_eval.evidence.answer_texts import (
    describe_first_divergences,
    draw_first_divergences,
    read_first_divergences,
)
from serve_eval.evidence.self_flips import NOTHING
from serve_eval.report.ci_result import CiCase, CiState, CiSuite, describe_drop
from serve_eval.report.document import (
    Block,
    Conclusion,
    Depth,
    Document,
    Statement,
    name_state,
    rank_outcome,
)
from serve_eval.report.page.content import (
    DataCell,
    DataColumn,
    DataTable,
    PictureSection,
    State,
    TextLines,
)
from serve_eval.report.pictures import draw_load
from serve_eval.report.task_line import split_change
from serve_eval.schema import LoadBracket, LoadPoint, LoadSurface, LoadTask
from serve_eval.shell_words import quote_path
from serve_eval.stats.intervals import INTERVAL_ALPHA
from serve_eval.stats.score_bounds import score_bounds
from serve_eval.storage.story_files import LOAD
from serve_eval.verdicts.exit_code import FAIL, NOTHING_SCORED, PASS, UNDECIDED
from serve_eval.workflows.load.judging import (
    ALPHA,
    SCORE_ALPHA,
    find_exit_code,
    is_inconclusive,
)

COLUMNS = ("load", "value (95 %)", "failed", "lost", "won", "p", "TTFT, p99", "right/s", "finding")
CAPTION = (
    "lost, won: scores that fell and rose from the lowest load; p: exact, corrected for all loads;"
    f" at most {SCORE_ALPHA:g} accuses; TTFT, p99: median and 99th percentile of the time to the"
    " first token, in ms"
)
_STEPS = ("load", "asked", "from the sound end", "to the broken end", "finding")
_OUTCOMES = {FAIL: "FAIL", PASS: "PASS", UNDECIDED: "INCONCLUSIVE", NOTHING_SCORED: "ERROR"}
_WORDS = {
    "lowest": "",
    "holds": "holds",
    "worse": "lower",
    "better": "higher",
    "likely worse": "lower?",
    "likely better": "higher?",
    "fails": "FAILS",
    "gave up": "GAVE UP",
}
"""The word for the state of a load that is not among the broken ones."""
_UNPROVED = ("likely worse", "likely better", "holds")
_DIFFERENT = ("worse", "better", "likely worse", "likely better")


def make_document(found: LoadSurface, out_dir: Path) -> Document:
    """Return the document of a check: for each task the broken loads, and the values over all."""
    conclusions = [_conclude(found, task) for task in found.tasks]
    document = Document(
        "load",
        f"serve-eval check load {found.base_url}",
        found,
        outcome=_name_outcome(found, found.exit_code),
        conclusions=conclusions,
        overview=_make_overview(found, conclusions),
        endpoint=found.base_url,
        statements=list(_describe_rest(found)),
        blocks=list(_list_blocks(found)),
        warnings=found.warnings,
        commands=list(_list_next(found, out_dir))[:3],
        result=out_dir / LOAD.result,
    )
    suites = [
        CiSuite(
            f"serve-eval check load {task.task}",
            [_describe_point(document, task, point, one) for point in task.points],
            host=document.endpoint,
            seconds=document.header.wall_s / len(document.conclusions),
        )
        for task, one in zip(found.tasks, conclusions, strict=True)
    ]
    return replace(document, suites=suites)


def _name_outcome(found: LoadSurface, code: int) -> str:
    """Return the verdict; a rehearsal passes and fails nothing."""
    return _OUTCOMES[UNDECIDED if found.rehearsal and code in (PASS, FAIL) else code]


def _conclude(found: LoadSurface, task: LoadTask) -> Conclusion:
    """Return the verdict on a task: its worst load against the lowest one, and the reason."""
    code = find_exit_code([task])
    asked = [point for point in task.points if point.outcome != "gave up"]
    most = max(point.scored + point.failed for point in task.points)
    failed = sum(point.failed for point in asked)
    bracket = _find_bracket(found, task)
    return Conclusion(
        task.task,
        _name_outcome(found, code),
        figures=_describe_worst(task),
        counts=f"{most:,} prompts at each load, {failed:,} failed",
        cause="" if code == PASS else _name_cause(task, bracket),
        statements=[*_describe_task(task), *_describe_bracket(bracket)],
    )


def _name_cause(task: LoadTask, bracket: LoadBracket | None) -> str:
    """Return where a task is broken, or why nothing can be concluded."""
    if bracket is not None:
        return name_edge(bracket)
    if task.words != NOTHING:
        return task.words
    if any(point.scored for point in task.points):
        return "too few answers to conclude anything"
    return "no prompt has a score"


def _describe_worst(task: LoadTask) -> str:
    """Return the figures of the load that speaks for a task against those of the lowest one."""
    lowest = next(point for point in task.points if point.outcome != "gave up")
    if task.failing and not task.broken:
        worst = max(task.points, key=lambda point: (point.load in task.failing, point.failed))
        sure = f" (p {worst.p_failures:.2g})" if worst.p_failures < 1.0 else ""
        return (
            f"{worst.failed:,} of {worst.scored + worst.failed:,} failed at {worst.load} in flight"
            f" against {lowest.failed:,} at {lowest.load}{sure}"
        )
    others = [point for point in task.points if point.value is not None and point is not lowest]
    accused = [point for point in others if point.load in task.broken]
    shown = min(
        accused or others, key=lambda point: (point.won - point.lost, -point.load), default=None
    )
    return "" if shown is None else _describe_figures(lowest, shown)


def _is_bad(task: LoadTask, point: LoadPoint) -> bool:
    return point.load in task.broken or point.load in task.failing


def _make_overview(found: LoadSurface, conclusions: Sequence[Conclusion]) -> DataTable:
    """Return the table of several tasks, the worst first."""
    rows = sorted(
        zip(found.tasks, conclusions, strict=True), key=lambda pair: rank_outcome(pair[1].outcome)
    )
    return DataTable(
        "Tasks",
        columns=[DataColumn(name) for name in ("outcome", "task", "value", "lowest", "drop")],
        rows=[
            [
                DataCell(one.outcome, state=name_state(one.outcome)),
                DataCell(task.task),
                *(DataCell(text.rstrip(")")) for text in _split(one.figures)),
            ]
            for task, one in rows
        ],
        caption="the load with most lost scores, or a broken one, against the lowest",
    )


def _split(figures: str) -> tuple[str, str, str]:
    """Return a value, that at the lowest load, and the drop with its interval."""
    values, _, drop = figures.partition(" (")
    value, _, lowest = values.replace(" in flight", "").partition(" against ")
    return value, lowest, drop.removeprefix("drop ")


def _find_bracket(found: LoadSurface, task: LoadTask) -> LoadBracket | None:
    return found.bracket if found.bracket and found.bracket.task == task.task else None


def _describe_figures(lowest: LoadPoint, shown: LoadPoint) -> str:
    """Return the value at a load against that at the lowest one.

    The interval is that of the pairs, by Tango's score, for scores that are right or wrong.
    """
    if lowest.value is None or shown.value is None:
        return ""
    change, interval = shown.value - lowest.value, None
    if shown.paired and shown.right_per_s is not None:
        low, high = score_bounds(shown.lost, shown.won, shown.paired, INTERVAL_ALPHA / 2.0)
        change = 100.0 * (shown.won - shown.lost) / shown.paired
        interval = (100.0 * low, 100.0 * high)
    drop, *ends = split_change(change, interval, points=True)
    here = f"{shown.value:.1f} at {shown.load} in flight"
    return describe_drop(here, f"{lowest.value:.1f} at {lowest.load}", drop, ends)


def _describe_task(task: LoadTask) -> Iterator[Statement]:
    """Yield what the loads show of a task, apart from its conclusion."""
    known = [p.excluded for p in task.points if p.excluded is not None and p.outcome == "holds"]
    if task.words == NOTHING and known and not is_inconclusive(task):
        yield Statement(
            "so",
            f"no loss was found; a loss of {max(known):.1f} points or more is excluded at each"
            " load, with 95 % confidence for each",
        )
    if task.words == NOTHING and task.q_p is not None and task.q_p <= ALPHA:
        text = "the loads may differ, but none is proved to: ask more prompts with --limit"
        yield Statement("but", text)
    different = [point for point in task.points if point.outcome in _DIFFERENT]
    worst = max(different, key=lambda point: abs(point.lost - point.won), default=None)
    for point in different:
        if (places := point.places) is not None:
            told = describe_first_divergences(places), read_first_divergences(places)
            yield Statement(
                f"at {point.load}",
                f"{point.changed} answers changed; first different {places.unit}, from 0:"
                f" {'; '.join(filter(None, told))}",
                depth=Depth.FIRST if point is worst else Depth.MORE,
            )
    if task.q is not None and task.q_p is not None and task.df > 1:
        yield Statement(
            "Cochran",
            f"Q over all loads {task.q:.1f} with {task.df} degrees of freedom, p = {task.q_p:.2g}",
            depth=Depth.MORE,
        )


def name_edge(bracket: LoadBracket) -> str:
    """Return the loads between which a bisection found the answers to break."""
    good, bad = bracket.good, bracket.bad
    if abs(good - bad) > 1:
        return f"sound at {good}, broken at {bad}; the loads between them are not known"
    edge = f"broken from {bad} on" if good < bad else f"broken up to {bad}"
    return f"{edge}, sound at {good}"


def _describe_bracket(bracket: LoadBracket | None) -> Iterator[Statement]:
    """Yield how sure a bisection is."""
    if bracket is None:
        return
    if bracket.undecided is not None:
        text = f"load {bracket.undecided} is not decided: ask more prompts with --limit"
        yield Statement("but", text)
    text = (
        f"the bracket is wrong with a chance of at most {bracket.level:g}; a load that is broken"
        " alone, between loads that are sound, may be missed"
    )
    yield Statement("note", text)


def _describe_rest(found: LoadSurface) -> Iterator[Statement]:
    order = ", ".join(map(str, found.order))
    text = f"{found.requests:,} requests; the loads were asked in the order {order}"
    yield Statement("order", text, depth=Depth.MORE)


def _list_next(found: LoadSurface, out_dir: Path) -> Iterator[str]:
    """Yield the commands that show the samples of the worst load, and what they have in common."""
    for task in found.tasks:
        points = [point for point in task.points if point.outcome != "gave up"]
        broken = [point for point in points if point.load in task.broken]
        sound = [point for point in points if not _is_bad(task, point)]
        failing = [point for point in points if point.load in task.failing and point.failed]
        if broken and sound:
            worst = min(broken, key=lambda point: point.won - point.lost)
            pair = [quote_path(out_dir / str(one.load)) for one in (sound[0], worst)]
            yield f"serve-eval compare {' '.join(pair)}"
        if failing:
            worst = max(failing, key=lambda point: point.failed)
            yield f"serve-eval show {quote_path(out_dir / str(worst.load))} --failed"


def _list_blocks(found: LoadSurface) -> Iterator[Block]:
    """Yield the pictures, and for each task its table and where its answers part."""
    pictures = [drawn for task in found.tasks if (drawn := draw_load(task)) is not None]
    if pictures:
        section = PictureSection("Accuracy over the load", pictures)
        yield Block(section, depth=Depth.PAGE)
    alone = len(found.tasks) == 1
    for task in found.tasks:
        first = alone or bool(task.broken or task.failing)
        yield Block(_tabulate(task), depth=Depth.FIRST if first else Depth.MORE)
        bracket = _find_bracket(found, task)
        if bracket is not None and bracket.steps:
            yield Block(
                DataTable(
                    f"{bracket.task}: loads of the bisection",
                    columns=[DataColumn(name, number=0 < i < 4) for i, name in enumerate(_STEPS)],
                    rows=[
                        [
                            DataCell(str(step.load), order=float(step.load)),
                            DataCell(str(step.askings)),
                            *(
                                DataCell(f"lost {lost}, won {won}")
                                for lost, won in (step.against_good, step.against_bad)
                            ),
                            DataCell(step.finding),
                        ]
                        for step in bracket.steps
                    ],
                    caption="lost, won: scores that fell and rose over all askings of a load",
                )
            )
        for point in task.points:
            if point.outcome in _DIFFERENT and point.places is not None:
                title = f"{task.task} at {point.load}: first different {point.places.unit}"
                lines = [line.strip() for line in draw_first_divergences(point.places)]
                yield Block(TextLines(title, lines, preformatted=True))


def _tabulate(task: LoadTask) -> DataTable:
    """Return a row for each load, without a column that has no figures."""
    rows = [_list_cells(task, point) for point in task.points]
    kept = [i for i in range(len(COLUMNS)) if any(row[i].text not in ("", "-") for row in rows)]
    return DataTable(
        task.task,
        columns=[DataColumn(COLUMNS[i], number=0 < i < len(COLUMNS) - 1) for i in kept],
        rows=[[row[i] for i in kept] for row in rows],
        caption=CAPTION,
    )


def _list_cells(task: LoadTask, point: LoadPoint) -> list[DataCell]:
    said = _WORDS[point.outcome]
    if point.load in task.broken:
        said = "broken?" if point.outcome in _UNPROVED else "BROKEN"
    quiet: State = "none" if point.outcome in ("lowest", "holds") else "warn"
    times = point.ttft_s or {}
    tested = point.outcome not in ("lowest", "gave up")
    return [
        DataCell(str(point.load), order=float(point.load)),
        DataCell(_describe_value(point), order=point.value),
        DataCell(str(point.failed), order=float(point.failed)),
        DataCell(str(point.lost) if tested else ""),
        DataCell(str(point.won) if tested else ""),
        DataCell(f"{point.p_holm:.2g}" if tested else "", order=point.p_holm),
        DataCell(f"{1000 * times['p50']:.0f}, {1000 * times['p99']:.0f}" if times else "-"),
        DataCell("-" if point.right_per_s is None else f"{point.right_per_s:.1f}"),
        DataCell(said, state="fail" if _is_bad(task, point) else quiet),
    ]


def _describe_value(point: LoadPoint) -> str:
    if point.value is None:
        return "-"
    if point.interval is None:
        return f"{point.value:.1f}"
    low, high = point.interval
    return f"{point.value:.1f} ({low:.0f}-{high:.0f})"


def _describe_point(
    document: Document, task: LoadTask, point: LoadPoint, one: Conclusion
) -> CiCase:
    bad, lost = _is_bad(task, point), point.outcome == "gave up"
    cells = zip(COLUMNS, _list_cells(task, point), strict=True)
    figures = {name: cell.text for name, cell in cells if cell.text}
    said = ", ".join(f"{name} {value}" for name, value in figures.items())
    return CiCase(
        task.task,
        f"load {point.load}",
        state=CiState.FAILURE if bad else CiState.ERROR if lost else CiState.PASSED,
        line=document.make_line_of(one) if bad or lost else None,
        details=[said],
        properties=figures,
    )
