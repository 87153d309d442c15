"""Make the table of deployments by tasks. No cell and no column mixes what is not the same."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from operator import itemgetter
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.protocol.sampling_fields import SCORER_OPTIONS
from serve_eval.report.results_table import DeploymentRow, ResultCell, ResultsTable, TaskColumn
from serve_eval.report.results_table.content import RUN
from serve_eval.report.summary.figures import count
from serve_eval.schema import MEAN, TaskReport
from serve_eval.series.cells import (
    correct_cells,
    describe_rules,
    find_column,
    list_lost,
    make_cell,
    make_column,
    make_lost_cell,
)
from serve_eval.series.deployments import (
    SEED,
    Key,
    choose_shown,
    count_prompts,
    count_repeats,
    describe_scorer_options,
    key_of_column,
)
from serve_eval.series.measured_runs import MeasuredRun, read_measured
from serve_eval.series.read_runs import PlannedTask, explain_efforts
from serve_eval.series.seeds import explain_equal_seeds, pool_cells
from serve_eval.storage.copied_run import ANSWERS_FROM
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.verdicts.reference_noise import describe_one_draw
from serve_eval.verdicts.references.lookup import LAUNCHER, describe_reference, shorten

_SHORT = 16
"""Characters of a setting that the heading of a column shows."""
Begun = tuple[datetime, ResultCell]
"""A cell with the time at which its run began."""
RowKey = tuple[str, tuple[tuple[str, str], ...]]
OUTSIDE = "outside of its correction"
"""Words of the note about runs that are not in the file of the suite."""


def read_results(folders: Sequence[Path]) -> ResultsTable:
    """Return the table of the runs in or below folders.

    Of several runs of a deployment the latest counts. Raises RunFolderError if no folder has a
    finished run.
    """
    return tabulate(*read_measured(folders, each=False))


def find_suite_results(folder: Path) -> ResultsTable | None:
    """Return the table of a suite that ended; None unless it has several runs and several tasks."""
    try:
        table = read_results([folder / SUITE_RUNS])
    except RunFolderError:
        return None
    return table if min(len(table.rows), len(table.columns)) > 1 else None


def tabulate(runs: Sequence[MeasuredRun], notes: Sequence[str] = ()) -> ResultsTable:
    """Return the table of runs, of which the last of those with one deployment counts."""
    asked: dict[Key, TaskReport] = {}
    for run in runs:
        for task in run.report.tasks if run.report else ():
            asked.setdefault(key_of_column(task), task)
    # The columns of one task stand side by side.
    order = list(dict.fromkeys(name for name, _ in asked))
    columns = dict(sorted(asked.items(), key=lambda item: order.index(item[0][0])))
    found: dict[RowKey, dict[Key, list[Begun]]] = defaultdict(lambda: defaultdict(list))
    lost: dict[Key, PlannedTask] = {}
    for run in runs:
        cells = found[run.model, tuple(run.attributes.items())]
        for planned, _ in list_lost(run):
            if (key := find_column(planned, columns)) not in columns:
                lost.setdefault(key, planned)
        for key, cell in _list_cells(run, columns):
            cells[key].append((run.began, cell))
    rows = {row: _pool_row(cells, columns, lost) for row, cells in found.items()}
    headings = _name_columns(columns)
    repeats = _list_repeats(runs)
    keys = [*columns, *lost]
    listed = [
        TaskColumn(
            task=key[0],
            heading=headings[key],
            metric=task.result.metric,
            planned=count_prompts(task),
            repeats=list(repeats[key]),
        )
        for key, task in columns.items()
    ]
    listed += [make_column(planned, list(headings.values())) for planned in lost.values()]
    deployments = correct_cells(
        DeploymentRow(
            model=model,
            attributes={name: shorten(value) for name, value in attributes},
            cells=[cells.get(key) for key in keys],
        )
        for (model, attributes), cells in rows.items()
    )
    return ResultsTable(
        columns=listed,
        rows=deployments,
        shown=choose_shown([dict(attributes) for _, attributes in rows]),
        rules=list(describe_rules(listed, deployments)),
        differing=_list_apart(columns),
        notes=(
            *_explain(runs),
            *explain_efforts([run.report.plan for run in runs if run.report]),
            *_explain_scorers(headings, columns),
            *_explain_repeats(headings, repeats),
            *_explain_one_draw(headings, runs),
            *explain_equal_seeds(listed, deployments),
        ),
        details=(*notes, *_list_rescored(runs)),
        references=list(_list_references(runs)),
    )


def _pool_row(
    cells: Mapping[Key, Sequence[Begun]],
    columns: Mapping[Key, TaskReport],
    lost: Mapping[Key, PlannedTask],
) -> dict[Key, ResultCell]:
    """Return the cells of a row, each of the latest run or of the mean over sampling seeds."""
    pooled = {}
    for key, begun in cells.items():
        found = [cell for _, cell in sorted(begun, key=itemgetter(0))]
        task = columns.get(key)
        if task is None:
            planned = lost[key]
            pooled[key] = pool_cells(found, planned.metric, prompts=planned.prompts, mean=False)
        else:
            mean = task.result.aggregation == MEAN.name
            pooled[key] = pool_cells(
                found, task.result.metric, prompts=count_prompts(task), mean=mean
            )
    return pooled


def _list_rescored(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """Yield which runs have the answers of another one, scored again."""
    for run in runs:
        for warning in run.report.warnings if run.report else ():
            if warning.startswith(ANSWERS_FROM):
                yield f"{run.folder}: {warning}"


def _list_references(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """Yield each reference that judged, with its tasks."""
    found: dict[str, dict[str, None]] = defaultdict(dict)
    for run in runs:
        for task in run.report.tasks if run.report else ():
            if task.reference is not None:
                found[describe_reference(task.reference)][task.result.task] = None
    yield from (f"{name} ({', '.join(tasks)})" for name, tasks in found.items())


def _list_repeats(runs: Sequence[MeasuredRun]) -> dict[Key, dict[int, list[str]]]:
    """Return the numbers of repeats of each column, in ascending order, with the runs of each."""
    found: dict[Key, dict[int, dict[str, None]]] = defaultdict(lambda: defaultdict(dict))
    for run in runs:
        for task in run.report.tasks if run.report else ():
            name = run.attributes.get(RUN) or run.folder.name
            found[key_of_column(task)][count_repeats(task)][name] = None
    return {
        key: {number: list(times[number]) for number in sorted(times)}
        for key, times in found.items()
    }


def _explain_scorers(
    headings: Mapping[Key, str], columns: Mapping[Key, TaskReport]
) -> Iterator[str]:
    """Yield the options of scorers that the headings of columns do not say."""
    for key, task in columns.items():
        options = describe_scorer_options(task)
        if options and options not in headings[key]:
            yield f"{headings[key]}: scored with other than default options: {options}"


def _explain_repeats(
    headings: Mapping[Key, str], repeats: Mapping[Key, Mapping[int, Sequence[str]]]
) -> Iterator[str]:
    """Yield the columns whose runs asked each prompt a different number of times."""
    for key, times in repeats.items():
        if len(times) > 1:
            told = [f"{count(n, 'time')} by {', '.join(names)}" for n, names in times.items()]
            yield f"{headings[key]}: each sample was asked {'; '.join(told)}"


def _explain_one_draw(headings: Mapping[Key, str], runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """Yield the columns with runs whose repeats are no independent draws."""
    found: dict[Key, int] = defaultdict(int)
    for run in runs:
        for task in run.report.tasks if run.report else ():
            found[key_of_column(task)] += describe_one_draw(task.result.stability) is not None
    for key, number in found.items():
        if number:
            yield (
                f"{headings[key]}: the repeats of {count(number, 'run')} are no independent draws"
                " (the same seed or the same texts): their spread measures no uncertainty"
            )


def _list_cells(
    run: MeasuredRun, columns: Mapping[Key, TaskReport]
) -> Iterator[tuple[Key, ResultCell]]:
    for task in run.report.tasks if run.report else ():
        yield key_of_column(task), make_cell(task, run, run.judged.get(task.result.task))
    for planned, row in list_lost(run):
        yield find_column(planned, columns), make_lost_cell(planned, row, run)


def _name_columns(columns: Mapping[Key, TaskReport]) -> dict[Key, str]:
    """Return a heading for each column: the task, and the settings in which its columns differ."""
    found: dict[Key, str] = {}
    for name in dict.fromkeys(task for task, _ in columns):
        alike = {key: task for key, task in columns.items() if key[0] == name}
        fields = _list_differing(list(alike.values()))
        sizes = len(set(map(count_prompts, alike.values()))) > 1
        headings = [
            _describe_settings(name, task, fields, sizes) if len(alike) > 1 else name
            for task in alike.values()
        ]
        for i, key in enumerate(alike):
            said, earlier = headings[i], headings[:i].count(headings[i])
            found[key] = f"{said} #{earlier + 1}" if headings.count(said) > 1 else said
    return found


def name_asked(tasks: Sequence[TaskReport]) -> list[str]:
    """Return a heading for each task: equal ones were asked in the same way, and only these."""
    asked: dict[Key, TaskReport] = {}
    for task in tasks:
        asked.setdefault(key_of_column(task), task)
    headings = _name_columns(asked)
    return [headings[key_of_column(task)] for task in tasks]


def _list_differing(tasks: Sequence[TaskReport]) -> list[str]:
    names = dict.fromkeys(name for task in tasks for name in task.fingerprint)
    return [
        name
        for name in names
        if name not in ("samples", SEED) and len({task.fingerprint.get(name) for task in tasks}) > 1
    ]


def _describe_settings(name: str, task: TaskReport, fields: Sequence[str], sizes: bool) -> str:
    said = [
        f"{field} {value}"
        for field in fields
        if field != SCORER_OPTIONS
        and len(value := task.fingerprint.get(field, "none").strip('"')) <= _SHORT
    ]
    options = describe_scorer_options(task)
    said += [options] if options and SCORER_OPTIONS in fields else []
    said += [f"n {count_prompts(task)}"] if sizes else []
    return f"{name} ({', '.join(said)})" if said else name


def _list_apart(columns: Mapping[Key, TaskReport]) -> dict[str, str]:
    """Return what differs between the columns of each task that has several."""
    apart = {}
    for name in dict.fromkeys(task for task, _ in columns):
        alike = [task for key, task in columns.items() if key[0] == name]
        if len(alike) < 2:
            continue
        fields = _list_differing(alike)
        if len(set(map(count_prompts, alike))) > 1:
            fields.append("number of samples")
        elif len({task.fingerprint.get("samples") for task in alike}) > 1 and not (
            {"scorers", SCORER_OPTIONS} & {*fields}
        ):
            fields.append("samples")
        apart[name] = ", ".join(fields) or "metric or judge"
    return apart


def _explain(runs: Sequence[MeasuredRun]) -> Iterator[str]:
    """Yield which runs are outside of a suite, and that simulated endpoints are no models."""
    if outside := [run.folder.name for run in runs if run.outside]:
        yield f"not in the file of the suite, and {OUTSIDE}: {', '.join(outside)}"
    if any(run.attributes.get(LAUNCHER) == "simulated" for run in runs):
        yield "the launcher simulated is no model: its values say nothing about one"
