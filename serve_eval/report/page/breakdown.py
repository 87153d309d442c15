"""Show the accuracy by each field of a task's breakdown, with intervals and the reference."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from urllib.parse import urlencode

from serve_eval.report.page.content import DataCell, DataColumn, DataTable
from serve_eval.report.pictures import bound_mean
from serve_eval.report.summary.breakdown import BreakdownSlice, list_slices
from serve_eval.report.summary.figures import add_sign, figure, span
from serve_eval.report.summary.summary_task import SummaryTask
from serve_eval.schema import MEAN, Metric


def show_breakdown(
    task: SummaryTask, fields: Collection[str], *, several: bool = False
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
        columns = [DataColumn(name=field), DataColumn(name="n", number=True)]
        columns += [DataColumn(name=metric.name, number=True), DataColumn(name="95 %")]
        if before:
            columns += [DataColumn(name=text, number=True) for text in (before, "change")]
        by = f"{name}: by" if several else "By"
        yield DataTable(
            title=f"{by} {field}: {_describe_worst(slices, metric)}",
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
        DataCell(text=one.name, href=f"#{place}" if place else ""),
        DataCell(text=f"{one.scored:,}", order=one.scored),
        DataCell(text=figure(one.value, metric), order=one.value),
        DataCell(
            text="-" if ends is None else span(ends, metric),
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
            DataCell(
                text="-" if one.before is None else figure(one.before, metric), order=one.before
            ),
            DataCell(text="-" if change is None else add_sign(change, metric), order=change),
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
