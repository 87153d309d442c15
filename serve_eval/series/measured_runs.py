"""Read the runs below folders, each with its deployment, and with its part in a suite."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.frozen import freeze, freeze_places
from serve_eval.report.results_table.content import BEGAN, RUN, SAMPLING_SEED
from serve_eval.schema import Report, Suite, SuiteReport, SuiteRow
from serve_eval.series.deployments import (
    IMAGE,
    SERVER,
    describe_deployment,
    find_seed,
    join_folders,
    name_folders,
    name_of_model,
    without_seeds,
)
from serve_eval.series.read_runs import (
    UNFINISHED,
    FinishedRun,
    PlannedTask,
    count_answers,
    describe_effort,
    drop_planned,
    explain_no_run,
    leave_effort_out,
    list_planned,
    say_answers,
    search_runs,
)
from serve_eval.shell_words import quote_path
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.storage.story_files import COMPARE, SUITE
from serve_eval.storage.story_results import (
    describe_comparison,
    find_suite_report,
    locate_runs,
    read_suite,
)

NEVER = datetime.min.replace(tzinfo=UTC)
UNNAMED = "-"
"""The model of a run that named none and reached no endpoint."""


@freeze
class MeasuredRun:
    """A run with the attributes of its deployment.

    `report` is None if an error ended the run of a suite. `judged` are its rows in the report of
    its suite, by task: a suite corrects verdicts and waives them. `planned` are the tasks of its
    plan in a suite, which the report lacks if an error ended the run. `outside`: the run lies in
    the folder of a suite that does not know it. `error` is the kind of the error that ended it, and
    `answers` says how many came before. `task_label` is the part of its name that tells only tasks.
    """

    folder: Path
    model: str
    attributes: Mapping[str, str]
    began: datetime
    report: Report | None
    judged: Mapping[str, SuiteRow] = field(default_factory=dict)
    planned: Mapping[str, PlannedTask] = field(default_factory=dict)
    outside: bool = False
    error: str = ""
    answers: str = ""
    task_label: str = ""


@freeze_places
class _Suite:
    suite: Suite
    report: SuiteReport | None


def read_measured(
    folders: Sequence[Path], *, each: bool = False
) -> tuple[list[MeasuredRun], list[str]]:
    """Return the runs in or below the folders, the oldest first, and notes on those left out.

    Copies of a run count once. `each`: runs that differ only in their time or in their sampling
    seed are kept apart too. A comparison stands for its two sides. Raises RunFolderError if no
    folder has a finished run.
    """
    found: dict[Path, FinishedRun] = {}
    unfinished: dict[Path, Path] = {}
    notes: list[str] = []
    notes += [note for folder in folders if (note := describe_comparison(folder))]
    searched = {folder: search_runs(folder) for given in folders for folder in _list_places(given)}
    for folder, one in searched.items():
        notes += [note for note in one.notes if not note.startswith(UNFINISHED)]
        found.update({run.folder.resolve(): run for run in one.finished})
        unfinished.update({run.resolve(): run for run in one.unfinished})
        if not one.finished and not one.unfinished:
            notes.append(f"{folder} contains no finished run")
    if not found:
        raise explain_no_run(*next(iter(searched.items())))
    ordered = sorted(found.values(), key=lambda run: (run.began, str(run.folder)))
    measured, notes = measure(_drop_copies(ordered, notes), folders, each=each, notes=notes)
    shown = {run.folder.resolve() for run in measured}
    notes += [_describe_unfinished(run) for at, run in unfinished.items() if at not in shown]
    return measured, notes


def _list_places(folder: Path) -> list[Path]:
    """Return the run folders of a comparison's sides, which may be elsewhere, or the folder."""
    if not COMPARE.has_plan(folder):
        return [folder]
    sides = [run for _, run in locate_runs(folder) if run.is_dir()]
    return sides or [folder]


def _describe_unfinished(run: Path) -> str:
    """Return how far a run came that has no report, and the command that finishes it."""
    try:
        counts = [f"{name} {n} of {planned or '?'}" for name, n, planned in count_answers(run)]
    except (OSError, RunFolderError) as error:
        return f"left out: {run} is unfinished: {error}"
    return (
        f"left out: {run} is unfinished: answers: {', '.join(counts)}; finish it with"
        f" serve-eval run --resume {quote_path(run)}"
    )


def _drop_copies(runs: Sequence[FinishedRun], notes: list[str]) -> list[FinishedRun]:
    kept: dict[tuple[bytes, bytes], FinishedRun] = {}
    for run in runs:
        key = run.sessions, msgspec.json.encode(run.report.tasks)
        if key in kept:
            notes.append(f"left out: {run.folder}: the same run as {kept[key].folder}")
        else:
            kept[key] = run
    return list(kept.values())


def measure(
    runs: Sequence[FinishedRun],
    folders: Sequence[Path],
    *,
    each: bool = False,
    notes: list[str] | None = None,
) -> tuple[list[MeasuredRun], list[str]]:
    """Return finished runs with their deployments, and those of their suites that an error ended.

    Of these only the ones in or below `folders` count.
    """
    notes = [] if notes is None else notes
    suites = _find_suites(runs, notes)
    runs = _sort(runs, suites)
    measured = [_describe(run, suites.get(run.folder.parent.parent)) for run in runs]
    known = {run.folder for run in runs}
    tops = [folder.resolve() for folder in folders]
    for place, suite in suites.items():
        for lost in _list_lost(place, suite):
            if lost.folder not in known and any(
                lost.folder.resolve().is_relative_to(top) for top in tops
            ):
                measured.append(lost)
    seeds = [_list_seeds(run) for run in measured]
    labels = name_folders(
        [
            (run.folder, _list_tasks(run), () if each else drawn)
            for run, drawn in zip(measured, seeds, strict=True)
        ]
    )
    told = [
        replace(
            run,
            attributes={
                **({RUN: label} if label else {}),
                **(run.attributes if each else without_seeds(run.attributes, drawn)),
                **({SAMPLING_SEED: ", ".join(drawn)} if each and drawn else {}),
                **({BEGAN: f"{run.began:%Y-%m-%d %H:%M:%S}"} if each and run.began > NEVER else {}),
            },
        )
        for run, label, drawn in zip(measured, labels, seeds, strict=True)
    ]
    if each:
        return _tell_apart(told), notes
    joined, more = join_folders([_adopt(run, told) for run in told], folders)
    return joined, [*notes, *more]


def _sort(runs: Sequence[FinishedRun], suites: Mapping[Path, _Suite]) -> list[FinishedRun]:
    """Return runs, the oldest first; those of a suite that began together in its order."""
    places = {
        place / SUITE_RUNS / run.name: (str(place), i)
        for place, one in suites.items()
        for i, run in enumerate(one.suite.runs)
    }

    def order(run: FinishedRun) -> tuple[datetime, tuple[str, int], str]:
        return run.began, places.get(run.folder, (str(run.folder), 0)), str(run.folder)

    return sorted(runs, key=order)


def _adopt(run: MeasuredRun, others: Sequence[MeasuredRun]) -> MeasuredRun:
    """Return a run whose server never described itself as one of the same deployment, if any.

    The latest such run gives the server's description and the model.
    """
    if run.report is not None:
        return run
    for one in reversed(others):
        same_model = one.model == run.model or run.model == UNNAMED
        if one.report is not None and same_model and _leave_reported(one) == _leave_reported(run):
            return replace(run, model=one.model, attributes=one.attributes)
    return run


def _leave_reported(run: MeasuredRun) -> dict[str, str]:
    """Return the attributes of a run without those that its server reported."""
    return {k: v for k, v in run.attributes.items() if k not in (SERVER, IMAGE)}


def _tell_apart(runs: Sequence[MeasuredRun]) -> list[MeasuredRun]:
    """Return runs with the time of each numbered where two began in the same second."""
    seen: dict[object, int] = {}
    told = []
    for run in runs:
        key = run.model, tuple(run.attributes.items())
        seen[key] = seen.get(key, 0) + 1
        if seen[key] > 1:
            began = f"{run.attributes[BEGAN]} ({seen[key]})"
            run = replace(run, attributes={**run.attributes, BEGAN: began})
        told.append(run)
    return told


def _list_tasks(run: MeasuredRun) -> list[str]:
    tasks = [task.result.task for task in run.report.tasks] if run.report else list(run.judged)
    return [*tasks, run.task_label] if run.task_label else tasks


def _list_seeds(run: MeasuredRun) -> list[str]:
    """Return the sampling seeds that a run sent, or was to send before an error ended it."""
    sent = [] if run.report is None else list(map(find_seed, run.report.tasks))
    lost = [task.seed for task in run.planned.values()]
    return list(dict.fromkeys(filter(None, (*sent, *lost))))


def _find_suites(runs: Sequence[FinishedRun], notes: list[str]) -> dict[Path, _Suite]:
    """Return the suites of runs, by their folders."""
    found = {}
    for place in dict.fromkeys(
        run.folder.parent.parent for run in runs if run.folder.parent.name == SUITE_RUNS
    ):
        try:
            if SUITE.has_plan(place):
                found[place] = _Suite(read_suite(place), find_suite_report(place))
        except RunFolderError as error:
            notes.append(f"without its suite: {error}")
    return found


def _describe(run: FinishedRun, suite: _Suite | None) -> MeasuredRun:
    own: Mapping[str, object] = {}
    judged: Mapping[str, SuiteRow] = {}
    planned: Mapping[str, PlannedTask] = {}
    outside, label = False, ""
    if suite is not None:
        name = run.folder.name
        known = next((one for one in suite.suite.runs if one.name == name), None)
        judged, outside = _pick(suite.report, name), known is None
        if known is not None:
            own, label = known.attributes, known.task_label
            asked = {task.result.task for task in run.report.tasks}
            if judged.keys() - asked:
                planned = drop_planned(list_planned(run.folder, known.plan), run.report.plan)
    return MeasuredRun(
        folder=run.folder,
        model=name_of_model(run.report),
        attributes={
            **describe_effort(run.report.plan),
            **describe_deployment(run.report.plan, run.report.endpoint, own),
        },
        began=run.began,
        report=leave_effort_out(run.report),
        judged=judged,
        planned=planned,
        outside=outside,
        task_label=label,
    )


def _pick(report: SuiteReport | None, run: str) -> dict[str, SuiteRow]:
    return {} if report is None else {row.task: row for row in report.rows if row.run == run}


def _read_time(stored: str) -> datetime:
    try:
        found = datetime.fromisoformat(stored)
    except ValueError:
        return NEVER
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def _list_lost(place: Path, suite: _Suite) -> list[MeasuredRun]:
    """Return the runs of a suite that an error ended."""
    runs = () if suite.report is None else suite.report.runs
    lost = {one.name: one.error.kind for one in runs if one.error}
    began = NEVER if suite.report is None else _read_time(suite.report.started_at)
    return [
        MeasuredRun(
            folder=place / SUITE_RUNS / run.name,
            model=run.plan.model or UNNAMED,
            attributes={
                **describe_effort(run.plan),
                **describe_deployment(run.plan, None, run.attributes),
            },
            began=began,
            report=None,
            judged=_pick(suite.report, run.name),
            planned=drop_planned(list_planned(place / SUITE_RUNS / run.name, run.plan), run.plan),
            error=lost[run.name],
            answers=say_answers(place / SUITE_RUNS / run.name),
            task_label=run.task_label,
        )
        for run in suite.suite.runs
        if run.name in lost
    ]
