"""Read the finished runs below a folder, with what each was to ask.

An effort sets sampling, thoughts and more, as the model's card says. These settings differ because
the efforts do, and tell rows apart, not tasks.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from pathlib import Path

from serve_eval.errors import RunFolderError, ServeEvalError
from serve_eval.frozen import freeze, freeze_places
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Metric, Plan, Report, Spec, SuiteRow, Task, TaskReport, VerdictOutcome
from serve_eval.series.deployments import SEED, read_seed
from serve_eval.storage import journal
from serve_eval.storage.file_names import PLAN_FILE, REPORT_FILE, samples_file
from serve_eval.storage.folder_results import (
    EndedEarly,
    FolderResult,
    list_ended_early,
    list_results,
)
from serve_eval.storage.report_file import has_report, read_report
from serve_eval.storage.run_folder import read_fingerprints, read_plan
from serve_eval.storage.sessions import read_sessions, sessions_fingerprint
from serve_eval.storage.story_files import find_maker, name_command
from serve_eval.storage.story_results import find_suite_rows

UNFINISHED = "left out, because they are unfinished"
MOST_DEEP, MOST_FOLDERS = 8, 100_000
"""Largest depth below the folder, and largest number of folders, that are searched."""


@freeze
class FinishedRun:
    """A run folder with its report, and when its first session began.

    `sessions` is the record of its sessions, which copies of a run share. `part_of` is the command
    whose comparison or check asked it, and "" for a run that stands for itself. `judged` has the
    rows of its suite by task.
    """

    folder: Path
    report: Report
    began: datetime
    sessions: bytes
    part_of: str = ""
    judged: Mapping[str, SuiteRow] = field(default_factory=dict)

    def find_outcome(self, task: TaskReport) -> VerdictOutcome:
        """Return the outcome of a task, after the correction of its suite."""
        row = self.judged.get(task.result.task)
        return task.verdict.outcome if row is None else row.outcome

    def describe_outcome(self, task: TaskReport) -> str:
        """Return the outcome of a task: "INCONCLUSIVE (alone: FAIL)" if its suite corrected it."""
        outcome, own = self.find_outcome(task), task.verdict.outcome
        return outcome.value if outcome is own else f"{outcome.value} (alone: {own.value})"


@freeze_places
class FoundRuns:
    """The runs below a folder: the finished ones, the folders of the others, and notes."""

    finished: list[FinishedRun]
    unfinished: list[Path]
    notes: list[str]


def read_runs(folder: Path) -> tuple[list[FinishedRun], list[str]]:
    """Return the finished runs below a folder in the order of names, and notes on all others.

    Raises RunFolderError if there is no finished run.
    """
    found = search_runs(folder)
    if not found.finished:
        raise explain_no_run(folder, found)
    return found.finished, found.notes


def explain_no_run(folder: Path, found: FoundRuns) -> RunFolderError:
    """Return the error for a folder in which no run is finished."""
    n = len(found.unfinished)
    return RunFolderError(
        f"{folder} contains no finished run{f', only {n} unfinished ones' if n else ''}"
        + "".join(f"\n  {note}" for note in found.notes if note.startswith("left out: ")),
        hint=(
            "A finished run is a folder with a report.json, as serve-eval run -o FOLDER writes it."
        ),
    )


def search_runs(folder: Path) -> FoundRuns:
    """Return the runs below a folder in the order of names. Raises RunFolderError if it is none."""
    if not folder.is_dir():
        raise RunFolderError(
            f"{folder}: no such folder", hint="Name the folder that contains your run folders."
        )
    notes: list[str] = []
    found: list[FinishedRun] = []
    unfinished: list[Path] = []
    for run in _run_folders(folder, notes):
        if not has_report(run):
            unfinished.append(run)
            continue
        try:
            report = read_report(run)
            began, sessions, part_of = _first_session(run, report)
        except RunFolderError as error:
            notes.append(f"left out: {error}")
            continue
        found.append(
            FinishedRun(
                folder=run,
                report=report,
                began=began,
                sessions=sessions,
                part_of=part_of,
                judged=find_suite_rows(run),
            )
        )
    if unfinished:
        notes.append(_explain_unfinished(Counter(map(find_maker, unfinished))))
    return FoundRuns(found, unfinished, notes)


def _explain_unfinished(unfinished: Mapping[str, int]) -> str:
    """Return how many runs are unfinished, by their commands, and what finishes each kind."""
    ways = [
        f"{count} of serve-eval {name_command(maker)}, with the same command and -o FOLDER"
        if maker
        else f"{count} with serve-eval run --resume FOLDER"
        for maker, count in sorted(unfinished.items())
    ]
    total = sum(unfinished.values())
    return f"{UNFINISHED}: {total}; to finish them: {'; '.join(ways)}"


def read_ended_early(folder: Path) -> list[EndedEarly]:
    """Return the commands below a folder that ended without a result, in order of names."""
    return list(list_ended_early(folder, most_deep=MOST_DEEP, most_folders=MOST_FOLDERS))


def read_results(folder: Path, notes: list[str]) -> list[FolderResult]:
    """Return the results of comparisons, checks and suites below a folder, in order of names."""
    return list(list_results(folder, notes, most_deep=MOST_DEEP, most_folders=MOST_FOLDERS))


def _run_folders(folder: Path, notes: list[str]) -> Iterator[Path]:
    """Yield run folders in the order of their names. Links and folders of runs are not searched."""
    for seen, (path, folders, files) in enumerate(os.walk(folder)):
        if seen >= MOST_FOLDERS:
            notes.append(f"only the first {MOST_FOLDERS} folders below {folder} were searched")
            return
        if PLAN_FILE in files or REPORT_FILE in files:
            folders.clear()
            yield Path(path)
        elif len(Path(path).relative_to(folder).parts) >= MOST_DEEP and folders:
            notes.append(f"not searched: folders below {path}, which is {MOST_DEEP} folders deep")
            folders.clear()
        folders.sort()


def _first_session(run: Path, report: Report) -> tuple[datetime, bytes, str]:
    """Return when the run began, the record of its sessions, and the command that it is part of."""
    try:
        sessions = read_sessions(run)
        told = sessions[0].started_at if sessions else report.started_at
        began = datetime.fromisoformat(told)
        data = sessions_fingerprint(run) if sessions else str(run).encode()
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise RunFolderError(f"{run}: its start time cannot be read: {error}") from error
    part_of = next((one.part_of for one in sessions if one.part_of), "") or find_maker(run)
    return began if began.tzinfo else began.replace(tzinfo=UTC), data, part_of


def count_answers(run: Path) -> list[tuple[str, int, int | None]]:
    """Return each task with the number of its answers and of its samples, if that is known.

    A task that was not begun has 0. Raises OSError or RunFolderError for files that cannot be read.
    """
    found = []
    for name, printed in read_fingerprints(run).items():
        file = samples_file(run, name)
        records = journal.read(file) if file.exists() else ()
        answered = {one.id for one in records if one.response}
        planned = printed.get("samples", "").partition(" ")[0]
        found.append((name, len(answered), int(planned) if planned.isdecimal() else None))
    return found


def say_answers(run: Path) -> str:
    """Return how many answers a run has: "64 of 310 answers"; "" if none."""
    try:
        counts = count_answers(run)
    except (OSError, RunFolderError):
        return ""
    answered = sum(n for _, n, _ in counts)
    planned = sum(n or 0 for _, _, n in counts)
    return f"{answered} of {planned} answers" if answered else ""


@freeze
class PlannedTask:
    """A task that a run was to ask.

    `fingerprint` is None if the run ended before its data were read, and `prompts` if their number
    is not known either. `seed` is the sampling seed that was to be sent, "" for none.
    """

    spec: Spec
    metric: Metric
    fingerprint: Mapping[str, str] | None = None
    prompts: int | None = None
    repeats: int = 1
    seed: str = ""

    @property
    def samples(self) -> int | None:
        """The number of samples, of which a prompt has one for each time that it is asked."""
        return None if self.prompts is None else self.prompts * self.repeats


def list_planned(folder: Path, plan: Plan) -> dict[str, PlannedTask]:
    """Return the tasks of a plan by name, with what the folder of its run knows of them."""
    try:
        saved, prints = read_plan(folder).tasks, read_fingerprints(folder)
    except RunFolderError:
        saved, prints = (), {}
    return {
        spec.name: _describe(spec, plan, prints.get(spec.name) if spec in saved else None)
        for spec in plan.tasks
    }


def _describe(spec: Spec, plan: Plan, known: Mapping[str, str] | None) -> PlannedTask:
    try:
        task = build_task(spec)
    except ServeEvalError:  # its code or its cases are elsewhere
        task = None
    return PlannedTask(
        spec=spec,
        metric=Metric() if task is None else task.metric,
        fingerprint=known,
        prompts=_count_prompts(spec, plan, known, task),
        repeats=plan.times(spec.name),
        seed=_find_seed(known, task),
    )


def _find_seed(known: Mapping[str, str] | None, task: Task | None) -> str:
    if known is not None:
        return read_seed(known)
    seed = None if task is None else task.protocol.get(SEED)
    return "" if seed is None else str(seed)


def _count_prompts(
    spec: Spec, plan: Plan, known: Mapping[str, str] | None, task: Task | None
) -> int | None:
    asked = ("" if known is None else known.get("samples", "")).partition(" ")[0]
    if asked.isdecimal():
        return int(asked)
    given = spec.options.get("num_samples")
    usual = None if task is None else task.hypothesis.num_samples
    counts = [plan.limit, given if isinstance(given, int) else usual]
    return min((one for one in counts if one is not None), default=None)


EFFORT, PRESET = "effort", "preset"
"""Attributes of a run: the effort that it asked for, and the row of the table of presets."""
_SETTINGS = frozenset(
    {"temperature", "top_p", "max_tokens", "thinking", "extra_body", "system_prompt"}
)
"""Options that an effort may set; one that it leaves out has the default."""


def describe_effort(plan: Plan) -> dict[str, str]:
    """Return the attributes of a run that asked for an effort."""
    preset = plan.preset
    if preset is None or not preset.effort:
        return {}
    return {EFFORT: preset.effort, **({PRESET: preset.name} if preset.name else {})}


def leave_effort_out(report: Report) -> Report:
    """Return a report whose protocols lack what follows from the effort of its plan."""
    return replace(report, tasks=tuple(drop_settings(task, report.plan) for task in report.tasks))


def drop_settings(task: TaskReport, plan: Plan) -> TaskReport:
    """Return a task of a plan without the settings that follow from the plan's effort."""
    return replace(task, fingerprint=_reduce(task.fingerprint, task.spec, plan))


def drop_planned(planned: Mapping[str, PlannedTask], plan: Plan) -> dict[str, PlannedTask]:
    """Return planned tasks without the settings that follow from the plan's effort."""
    return {
        name: task
        if task.fingerprint is None
        else replace(task, fingerprint=_reduce(task.fingerprint, task.spec, plan))
        for name, task in planned.items()
    }


def _reduce(fingerprint: Mapping[str, str], spec: Spec, plan: Plan) -> Mapping[str, str]:
    """Return a fingerprint without settings of the effort; one that the user set himself stays."""
    preset = plan.preset
    if preset is None or not preset.effort:
        return fingerprint
    names = {*_SETTINGS, *preset.values}
    left = {name for name in names if spec.options.get(name) == preset.values.get(name)}
    return {name: value for name, value in fingerprint.items() if name not in left}


def explain_efforts(plans: Sequence[Plan]) -> Iterator[str]:
    """Yield which settings follow from the efforts of a table, if it has several."""
    presets = [one.preset for one in plans if one.preset is not None and one.preset.effort]
    efforts = dict.fromkeys(one.effort for one in presets)
    if len(efforts) < 2:
        return
    names = dict.fromkeys(name for one in presets for name in one.values)
    apart = [
        name
        for name in names
        if any(one.values.get(name) != presets[0].values.get(name) for one in presets)
    ]
    yield (
        f"rows differ in the effort ({', '.join(efforts)}), which sets {', '.join(apart)} as the"
        " model's card says"
    )
