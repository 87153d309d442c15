"""Make the tables of a page: accuracy by field, repeated questions, nested settings."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from serve_eval.report.page.content import DataCell, DataColumn, DataTable, Fact, Facts
from serve_eval.report.pictures import bound_mean
from serve_eval.report.pictures.outcomes import UNREADABLE, WRONG, group_outcome
from serve_eval.report.samples.details import RepeatedQuestion
from serve_eval.report.summary.figures import SummaryTask, add_sign, figure, span
from serve_eval.report.summary.rows import BreakdownSlice, list_slices
from serve_eval.schema import MEAN, Metric


def show_breakdown(
    task: SummaryTask, fields: Collection[str], *, several: bool
) -> Iterator[DataTable]:
    """Yield a table for each field of the breakdown, the worst slices first.

    A slice of one of `fields` is a link that filters the samples. `several`: other tasks are on the
    page, so that titles name this one.
    """
    metric, name = task.result.metric, task.result.task
    before = f"was ({task.names[1]})" if task.before else ""
    for field, table in task.result.breakdown.items():
        slices = list(list_slices(table, task.before.get(field)))
        if len(slices) < 2:
            continue
        better = metric.higher_is_better
        slices.sort(key=lambda one: -one.badness if better else one.badness)
        columns = [DataColumn(field), DataColumn("n", number=True)]
        columns += [DataColumn(metric.name, number=True), DataColumn("95 %")]
        if before:
            columns += [DataColumn(text, number=True) for text in (before, "change")]
        by = f"{name}: by" if several else "By"
        yield DataTable(
            f"{by} {field}: {_describe_worst(slices, metric)}",
            columns=columns,
            rows=[
                _show_slice(
                    one,
                    task,
                    urlencode({"task": name, f"f.{field}": one.name}) if field in fields else "",
                )
                for one in slices
            ],
            caption=_explain(metric, before),
            closed=True,
        )


def _describe_worst(slices: Sequence[BreakdownSlice], metric: Metric) -> str:
    """Return the number of slices, and the worst with its value."""
    worst = slices[0]
    was = "" if worst.before is None else f", was {figure(worst.before, metric)}"
    return f"{len(slices)} slices, worst {worst.name} ({figure(worst.value, metric)}{was})"


def _explain(metric: Metric, before: str) -> str:
    first = "The largest drop in standard errors first." if before else "Worst first."
    if metric.lo is None or metric.hi is None:
        return first
    low, high = (f"{metric.scale * end:g}" for end in (metric.lo, metric.hi))
    mark = ", the triangle the reference" if before else ""
    return (
        f"{first} On a ruler from {low} to {high}, the dot is the value and the line its"
        f" interval{mark}."
    )


def _show_slice(one: BreakdownSlice, task: SummaryTask, place: str) -> list[DataCell]:
    metric = task.result.metric
    ends = _find_interval(one, task)
    cells = [
        DataCell(one.name, href=f"#{place}" if place else ""),
        DataCell(f"{one.scored:,}", order=one.scored),
        DataCell(figure(one.value, metric), order=one.value),
        DataCell(
            "-" if ends is None else span(ends, metric),
            order=one.value,
            place=_place(one.value, metric),
            interval=None
            if ends is None
            else (_place(ends[0], metric) or 0.0, _place(ends[1], metric) or 0.0),
            mark=None if one.before is None else _place(one.before, metric),
        ),
    ]
    if task.before:
        change = None if one.before is None else one.value - one.before
        cells += [
            DataCell("-" if one.before is None else figure(one.before, metric), order=one.before),
            DataCell("-" if change is None else add_sign(change, metric), order=change),
        ]
    return cells


def _find_interval(one: BreakdownSlice, task: SummaryTask) -> tuple[float, float] | None:
    """Return Wilson's interval of a slice of a mean of bounded scores, in points."""
    stability = task.result.stability
    if task.result.aggregation != MEAN.name or not one.scored:
        return None
    prompts = max(1, one.scored // (1 if stability is None else stability.repeats))
    return bound_mean(one.value, prompts, task.result.metric)


def _place(value: float, metric: Metric) -> float | None:
    """Return the place of a value in the range of a metric, from 0 to 1."""
    if metric.lo is None or metric.hi is None:
        return None
    share = (value / metric.scale - metric.lo) / (metric.hi - metric.lo)
    return min(1.0, max(0.0, share))


MOST_ROWS = 500
"""Questions that the table has at most: the least often right ones, which say most."""


def tabulate_questions(
    task: str, questions: Sequence[RepeatedQuestion], *, several: bool = False
) -> Iterator[DataTable]:
    """Yield the table of sorted questions, if there are any. Each leads to its samples.

    `several`: other tasks are on the page, so that the title names this one.
    """
    if not questions:
        return
    shown, repeats = questions[-MOST_ROWS:], questions[0].asked
    columns = [
        DataColumn("question"),
        DataColumn(f"right of {repeats}", number=True),
        DataColumn("%", number=True),
        DataColumn("wrong", number=True),
        DataColumn("unreadable", number=True),
        DataColumn("failed", number=True),
        DataColumn("cut", number=True),
        DataColumn("results", number=True, note="different results that were found"),
    ]
    caption = f"Each question was asked {repeats} times; the most often right first."
    if len(shown) < len(questions):
        caption += f" The last {len(shown):,} of {len(questions):,} questions are shown."
    yield DataTable(
        f"{f'{task}: by' if several else 'By'} question: {_count_mixed(questions)}",
        columns=columns,
        rows=[_show(one, task) for one in shown],
        caption=caption,
        closed=True,
    )


def _count_mixed(questions: Sequence[RepeatedQuestion]) -> str:
    """Return how many questions were right each time, sometimes, and never."""
    always = sum(one.share == 1.0 for one in questions)
    never = sum(one.right == 0 for one in questions)
    mixed = len(questions) - always - never
    return f"{always} always right, {mixed} sometimes, {never} never"


def _show(one: RepeatedQuestion, task: str) -> list[DataCell]:
    groups = {
        name: sum(n for outcome, n in one.outcomes.items() if group_outcome(outcome) == name)
        for name in (WRONG, UNREADABLE)
    }
    counts = (groups[WRONG], groups[UNREADABLE], one.asked - one.answered, one.cut)
    return [
        DataCell(one.id, href=f"#{urlencode({'sample': f'{task}/{one.id}'})}"),
        DataCell(f"{one.right}", order=one.right),
        DataCell(f"{100.0 * one.share:.1f}", order=one.share),
        *(DataCell(f"{n}" if n else "-", order=n) for n in counts),
        DataCell(f"{len(one.different)}", order=len(one.different)),
    ]


def list_settings(value: object, name: str = "") -> Iterator[tuple[str, str]]:
    """Yield each setting with its name, such as limits.concurrency; unset ones are left out."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from list_settings(inner, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list) and any(isinstance(one, dict) for one in value):
        for number, inner in enumerate(value):
            yield from list_settings(inner, f"{name}[{number}]")
    elif value not in (None, "", []):
        yield name, value if isinstance(value, str) else msgspec.json.encode(value).decode()


def show_settings(title: str, value: object) -> Facts:
    """Return the settings of a run, folded."""
    rows = [Fact(name, text) for name, text in _flatten(value).items()]
    return Facts(title, rows=rows, closed=True)


def contrast_settings(title: str, a: object, b: object) -> DataTable:
    """Return the settings of two runs: those that differ first, and marked."""
    left, right = _flatten(a), _flatten(b)
    names = list(dict.fromkeys((*left, *right)))
    differ = [name for name in names if left.get(name) != right.get(name)]
    rows = [
        [
            DataCell(name, state="warn" if name in differ else "none"),
            DataCell("differs" if name in differ else "same"),
            *(DataCell(side.get(name, "-")) for side in (left, right)),
        ]
        for name in (*differ, *(name for name in names if name not in differ))
    ]
    return DataTable(
        title,
        columns=[DataColumn(name) for name in ("setting", "compared", "A", "B")],
        rows=rows,
        caption=f"{len(differ)} of {len(names)} settings differ",
        closed=not differ,
    )


def _flatten(value: object) -> dict[str, str]:
    return dict(list_settings(msgspec.to_builtins(value)))
