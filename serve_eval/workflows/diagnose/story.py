"""The rules, and what they say of a run, of both sides of a comparison, or of the runs of a suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.storage import run_folder
from serve_eval.evaluation.storage.file_names import COMPARISON_PLAN, SUITE_RUNS
from serve_eval.plugins.scope import scoped
from serve_eval.workflows.diagnose import course, cut, extraction, setting, sides, template, unanswered
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, read
from serve_eval.workflows.diagnose.finding import Finding

SCHEMA_VERSION = 1

TASK_RULES: tuple[Callable[[Evidence, TaskEvidence], Iterable[Finding]], ...] = (
    unanswered.failures,
    cut.truncated,
    cut.unclosed_reasoning,
    cut.stopped_in_reasoning,
    cut.stop_string,
    cut.empty,
    template.template_marks,
    template.run_on,
    template.doubled_bos,
    extraction.stated,
    extraction.extractors,
    extraction.unreadable,
    course.worker,
    course.slow_worker,
    course.drift,
    course.concurrency,
    course.retried,
    setting.protocol,
    setting.data,
    setting.unsupported,
    setting.too_few,
    setting.missing,
    setting.unscored,
)
RUN_RULES: tuple[Callable[[Evidence], Iterable[Finding]], ...] = (
    unanswered.unfinished,
    unanswered.server_errors,
    course.hidden_retries,
    setting.other_model,
    setting.first_token_only,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedTask:
    """How a task came out. `outcome` is None where the run did not come to its end."""

    task: str
    outcome: str | None
    value: float | None
    threshold: float | None
    asked: int
    wrong: int
    missing: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosedRun:
    """A run with its findings: those first that explain the most, and then those of which that cannot be told."""

    label: str
    folder: str
    tasks: tuple[DiagnosedTask, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """What the rules say of a folder. `between` are findings of two sides beside each other."""

    schema_version: int
    folder: str
    runs: tuple[DiagnosedRun, ...]
    between: tuple[Finding, ...] = ()


@scoped
def diagnose(folder: Path, *, include_path: Sequence[str] = ()) -> Diagnosis:
    """Reads the folder of a run, a comparison or a suite. Raises RunFolderError where it is none, or damaged."""
    named = _runs(folder)
    read_runs = [(label, read(path, include_path=include_path)) for label, path in named]
    between: tuple[Finding, ...] = ()
    if (folder / COMPARISON_PLAN).exists() and len(read_runs) == 2:
        between = tuple(sides.prompt_tokens(read_runs[0][1], read_runs[1][1]))
    return Diagnosis(
        schema_version=SCHEMA_VERSION,
        folder=str(folder),
        runs=tuple(_diagnosed(label, evidence) for label, evidence in read_runs),
        between=between,
    )


def findings(evidence: Evidence) -> tuple[Finding, ...]:
    """What all rules say of one run."""
    found = [finding for of_run in RUN_RULES for finding in of_run(evidence)]
    found += [finding for rule in TASK_RULES for task in evidence.tasks for finding in rule(evidence, task)]
    return tuple(sorted(found, key=lambda finding: -1 if finding.explains is None else finding.explains, reverse=True))


def _runs(folder: Path) -> list[tuple[str, Path]]:
    """The run folders to look at, each with what it is called."""
    if (folder / COMPARISON_PLAN).exists():
        return _sides(folder)
    if (folder / SUITE_RUNS).is_dir() and not (folder / run_folder.PLAN_FILE).exists():
        found = sorted(path for path in (folder / SUITE_RUNS).iterdir() if (path / run_folder.PLAN_FILE).exists())
        if not found:
            raise RunFolderError(f"{folder / SUITE_RUNS} holds no run", hint="Run the suite first.")
        return [(path.name, path) for path in found]
    return [("", folder)]


def _sides(folder: Path) -> list[tuple[str, Path]]:
    """A and B of a comparison: below it, or where the finished run lies that was compared."""
    file = folder / COMPARISON_PLAN
    try:
        stored = msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw])
        given = {side: msgspec.json.decode(stored[side], type=dict[str, msgspec.Raw]).get("run") for side in ("a", "b")}
        places = {side: msgspec.json.decode(run, type=str) if run else None for side, run in given.items()}
    except (OSError, KeyError, msgspec.MsgspecError) as error:
        raise RunFolderError(f"{file} cannot be read: {error}") from error
    return [(side.upper(), Path(run) if run else folder / side) for side, run in places.items()]


def _diagnosed(label: str, evidence: Evidence) -> DiagnosedRun:
    tasks = tuple(
        DiagnosedTask(
            task=task.name,
            outcome=None if task.outcome is None else task.outcome.value,
            value=None if task.report is None else task.report.result.value,
            threshold=None if task.report is None else task.report.verdict.threshold,
            asked=len(task.asked),
            wrong=sum(one.bad for one in task.asked),
            missing=len(task.missing) + task.unscored,
        )
        for task in evidence.tasks
    )
    return DiagnosedRun(label=label, folder=str(evidence.folder), tasks=tasks, findings=findings(evidence))
