"""Build the report of a run, and check in advance that the verdict rule can judge its tasks.

The report also says if the model heeded the effort that its preset asks for.
"""

from __future__ import annotations

import platform
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any

import serve_eval
from serve_eval.errors import NotComparableError
from serve_eval.evaluation.capabilities.sampling import compare_with_reference, warn_of_defaults
from serve_eval.evaluation.earlier_run import describe_archived
from serve_eval.evaluation.prove_path import prove_path
from serve_eval.evaluation.run_cost import find_ending_limit, sum_cost
from serve_eval.evaluation.run_session import RunSession
from serve_eval.evaluation.task_run import TaskRun
from serve_eval.evidence import engine_counters
from serve_eval.evidence.path_proof import apply_path
from serve_eval.plan.command_line import HOW_TO_TAKE, write_take_command
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.extensions import KINDS, list_loaded
from serve_eval.plugins.values import LAUNCHERS, VERDICTS, load_verdict_rule
from serve_eval.protocol.presets import SWITCHES, TEMPLATE_FIELDS
from serve_eval.protocol.shared import TASKS
from serve_eval.schema import (
    EffortSeen,
    Endpoint,
    ModelPreset,
    Plan,
    Reference,
    Report,
    Response,
    SamplingDefaults,
    is_rehearsal,
)
from serve_eval.storage import run_folder
from serve_eval.storage.answer_origins import read_traces
from serve_eval.storage.journal import Record
from serve_eval.storage.report_file import REPORT_SCHEMA
from serve_eval.storage.sessions import SessionRecord
from serve_eval.verdicts import references


def report_on(
    session: RunSession, warnings: Iterable[str], *, strict: bool, unproven: int = 0
) -> Report:
    """Return the report of a session: each task with its verdict, and remarks about the run.

    `unproven` answers count although nothing proves that they belong to their samples.
    """
    from serve_eval.evaluation.controls import judge_controls
    from serve_eval.evaluation.task_report import RunFacts, report_task
    from serve_eval.verdicts import many_tests
    from serve_eval.verdicts.exit_code import code_of_rehearsal, exit_code, withhold

    wall_s = session.stopwatch.wall_s
    plan, folder, work, endpoint = session.plan, session.folder, session.tasks, session.endpoint
    noted, served = session.noted.read(), read_traces(folder)
    defaults = session.noted.defaults()
    more = (
        *_other_versions(work, endpoint),
        *_other_launches(work, plan),
        *warn_of_defaults(defaults, [w.prepared.task for w in work]),
        *_other_defaults(work, defaults),
        *_other_code(plan, noted),
        *describe_archived(folder, [w.prepared.task for w in work]),
    )
    loads = session.noted.loads()
    engine = engine_counters.join([one.engine for one in noted])
    run = RunFacts(
        folder=folder,
        plan=plan,
        unsupported=noted[-1].unsupported if noted else {},
        served=served,
        seeds=session.seeds,
        limits=[plan.limits, *(load.limits for load in loads)],
        looked_at=run_folder.read_looks(folder),
        defaults=defaults,
        ended_by=find_ending_limit(noted),
    )
    tasks = judge_controls((report_task(w, run) for w in work), work)
    corrected = many_tests.correct([t.verdict for t in tasks], "run")
    tasks = tuple(replace(t, verdict=one) for t, one in zip(tasks, corrected, strict=True))
    path = prove_path(plan, noted, work, tasks, engine, served)
    tasks = tuple(replace(t, verdict=apply_path(t.verdict, path.findings)) for t in tasks)
    effort, unheeded = _see_efforts(plan, work)
    code = exit_code([t.verdict for t in tasks], strict=strict)
    rehearsal = is_rehearsal(plan, [endpoint, *(one.endpoint for one in noted)])
    if rehearsal:
        code = code_of_rehearsal([(t.result, t.verdict) for t in tasks])
        tasks = tuple(replace(t, verdict=withhold(t.verdict)) for t in tasks)
    return Report(
        schema_version=REPORT_SCHEMA,
        rehearsal=rehearsal,
        model=plan.model,
        plan=plan,
        endpoint=endpoint,
        environment=environment(),
        tasks=tasks,
        loads=loads,
        exit_code=code,
        started_at=session.stopwatch.started_at,
        wall_s=wall_s,
        warnings=(*warnings, *path.warnings, *more, *unheeded),
        engine=engine,
        path=path.findings,
        unproven_answers=unproven,
        effort=effort,
        sampling_defaults=defaults,
        cost=sum_cost(tasks, noted),
    )


def _see_efforts(
    plan: Plan, work: Sequence[TaskRun]
) -> tuple[tuple[EffortSeen, ...], Sequence[str]]:
    """Return what came of the plan's effort by task, and a warning if it was not heeded."""
    preset = plan.preset
    if preset is None or not preset.effort:
        return (), ()

    seen = tuple(
        see_effort(w.prepared.task.name, preset, w.journal.records())
        for w in work
        if w.prepared.task.chat
    )
    told = describe_effort(preset, seen)
    return seen, () if told is None else (told,)


def check_pairs(plan: Plan, prepared: Sequence[PreparedTask]) -> None:
    """Raise NotComparableError if the rule compares samples but the reference does not allow it.

    That is so if the reference has no scores per sample or too few runs, if the value is neither a
    mean of the scores nor a function of sums, or if the rule compares texts.
    """
    rule = load_verdict_rule(plan.verdict.name)
    if rule.needs_texts:
        raise NotComparableError(
            f"the verdict {plan.verdict.name!r} compares the answers of two sides, and a reference"
            " has none",
            hint=f"serve-eval compare A B --verdict {plan.verdict.name}",
        )
    if not rule.needs_pairs:
        return
    for p in prepared:
        if p.reference is not None and not p.task.aggregation.paired:
            raise NotComparableError(
                f"{p.task.name}: the verdict {plan.verdict.name!r} compares means or sums of"
                f" scores, but the value is the {p.task.aggregation.name}",
                hint="Judge this task with --verdict classic, in a separate run.",
            )
        if p.reference is not None and p.reference.runs is None:
            raise _explain_unpaired(plan, p, p.reference)
        needed = rule.min_reference_runs
        if (
            p.reference is not None
            and p.reference.runs is not None
            and len(p.reference.runs.values) < needed
        ):
            raise NotComparableError(
                f"{p.task.name}: the verdict {plan.verdict.name!r} needs {needed} reference runs,"
                f" but the reference ({Path(p.reference.file).name}:{p.reference.line}) has"
                f" {len(p.reference.runs.values)}",
                hint=(
                    f"More runs replace the old reference. {HOW_TO_TAKE}:\n"
                    f"  {write_take_command(plan, [p.spec.name], runs=needed)} --reason '...'"
                ),
            )


def _explain_unpaired(plan: Plan, p: PreparedTask, found: Reference) -> NotComparableError:
    """Return the error for a reference without scores per sample."""
    metric = p.task.metric
    if p.task.aggregation.sums is None and None in (metric.lo, metric.hi):
        return NotComparableError(
            f"{p.task.name}: scores without bounds cannot be paired, as {plan.verdict.name!r} does:"
            " use classic for it",
            hint=(
                f"Judge {p.task.name} with --verdict classic in a separate run. In a suite: list it"
                " in another suite file with verdict: classic, asked into another folder with -o."
            ),
        )
    return NotComparableError(
        f"{p.task.name}: the verdict {plan.verdict.name!r} compares sample by sample, but"
        f" the reference ({Path(found.file).name}:{found.line}) has no scores per sample",
        hint=(
            f"{HOW_TO_TAKE}:\n"
            f"  {write_take_command(plan, [p.spec.name])} --reason 'scores per sample'"
        ),
    )


def _other_versions(work: Sequence[TaskRun], endpoint: Endpoint) -> list[str]:
    """Return a line per own reference taken at another software version than now answers."""
    now, found = endpoint.info.version, []
    for w in work:
        runs = None if w.prepared.reference is None else w.prepared.reference.runs
        if (
            runs is not None
            and runs.endpoint is not None
            and now is not None
            and runs.endpoint != now
        ):
            found.append(
                f"{w.prepared.task.name}: the reference was taken at version {runs.endpoint}; this"
                f" endpoint reports {now}"
            )
    return found


def _other_launches(work: Sequence[TaskRun], plan: Plan) -> list[str]:
    """Return a line per own reference taken at a server that was launched otherwise."""
    found = []
    for w in work:
        known = w.prepared.reference
        if known is not None and (difference := references.describe_difference(known, plan)):
            found.append(f"{w.prepared.task.name}: {difference}")
    return found


def _other_defaults(work: Sequence[TaskRun], found: SamplingDefaults | None) -> list[str]:
    """Return a line per reference whose servers added, or may have added, other fields."""
    lines = []
    for w in work:
        reference = w.prepared.reference
        if reference is None:
            continue
        other = compare_with_reference(found, reference, w.prepared.task)
        if other is not None:
            lines.append(f"{w.prepared.task.name}: {other.told}")
    return lines


def _other_code(plan: Plan, noted: Sequence[SessionRecord]) -> list[str]:
    """Return lines naming the external code behind the numbers, and how it changed meanwhile."""
    named = [
        *((TASKS, task) for task in plan.tasks),
        (LAUNCHERS, plan.launcher),
        (VERDICTS, plan.verdict),
    ]
    used = {
        f"{KINDS[folder]}.{name}"
        for folder, spec in named
        for name in (spec.name, spec.name.partition(":")[0])
    }
    told = []
    for name, now in list_loaded().items():
        if name not in used and not name.startswith("scorers."):
            continue
        before = [
            session.extensions[name].sha256 for session in noted if name in session.extensions
        ]
        changed = sorted(
            {digest[:12] for digest in before if digest is not None} - {now.sha256[:12]}
        )
        line = f"{name} is from {now.origin} (sha256 {now.sha256[:12]})"
        told.append(
            f"{line}; earlier answers were made with {', '.join(changed)}" if changed else line
        )
    return told


def environment() -> dict[str, object]:
    """Return the versions of the software behind the numbers.

    Optional packages are listed if installed, without importing them.
    """
    packages = ("httptools", "lm-eval", "msgspec", "numpy", "scipy", "tensorrt-llm", "uvloop")
    versions = {name: version for name in packages if (version := _version(name))}
    return {
        "serve_eval": serve_eval.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": versions,
        **({"extensions": extensions} if (extensions := list_loaded()) else {}),
    }


@cache
def _version(package: str) -> str | None:
    # A report is built several times a run, and each look-up parses the metadata of the package.
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


NO_EFFORT = "none"
REFUSED = (400, 422)
"""HTTP status of a request with a field that the server does not accept."""
MOST_SHOWN = 160
"""Characters of a refusal that a warning quotes."""


def see_effort(task: str, preset: ModelPreset, records: Iterator[Record]) -> EffortSeen:
    """Return what came of the effort of a preset in the records of a task."""
    from statistics import median

    fields = name_fields(preset.values)
    answers: dict[str, tuple[bool, int]] = {}
    refusals: dict[str, str] = {}
    for record in records:
        if record.response is not None:
            response = record.response
            answers[record.id] = thinks(response), response.usage.completion_tokens
        elif record.failure is not None and (
            record.failure.status in REFUSED
            and any(name in record.failure.message for name in fields)
        ):
            refusals[record.id] = record.failure.message
    tokens = [count for _, count in answers.values() if count]
    refused = [message for id_, message in refusals.items() if id_ not in answers]
    return EffortSeen(
        task=task,
        answers=len(answers),
        thinking=sum(thinking for thinking, _ in answers.values()),
        median_tokens=float(median(tokens)) if tokens else None,
        refused=len(refused),
        refusal=refused[0] if refused else "",
    )


def thinks(response: Response) -> bool:
    """Return True if an answer has thoughts, or tokens that the server counts as thoughts."""
    return bool((response.reasoning or "").strip() or response.usage.reasoning_tokens)


def name_fields(values: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the fields by which the values of a preset ask for an effort."""
    body = values.get("extra_body") or {}
    variables = body.get(TEMPLATE_FIELDS) or {}
    found = [name for name in body if name in ("reasoning_effort", TEMPLATE_FIELDS)]
    if "thinking" in values:
        found += [TEMPLATE_FIELDS, SWITCHES[0]]
    return tuple(dict.fromkeys([*found, *variables]))


def describe_effort(preset: ModelPreset, seen: Sequence[EffortSeen]) -> str | None:
    """Return one warning if what came does not fit the effort, or None."""
    told = [line for one in seen if (line := _judge(preset.effort, one))]
    if not told:
        return None
    sent = ", ".join(name_fields(preset.values)) or "system_prompt"
    return f"effort {preset.effort} (sent as {sent}) was not heeded: {'; '.join(told)}"


def _judge(effort: str, seen: EffortSeen) -> str:
    """Return what is wrong with the answers of a task, or ""."""
    tokens = "" if seen.median_tokens is None else f", {seen.median_tokens:g} tokens in the median"
    if seen.refused:
        said = " ".join(seen.refusal.split())[:MOST_SHOWN]
        return f"{seen.task}: the server refused {seen.refused} requests: {said}"
    if effort == NO_EFFORT and seen.thinking:
        return f"{seen.task}: {seen.thinking} of {seen.answers} answers have thoughts{tokens}"
    if effort != NO_EFFORT and seen.answers and not seen.thinking:
        return (
            f"{seen.task}: none of {seen.answers} answers has thoughts{tokens}. A server may hide"
            " them: start it with its reasoning parser, and see what its chat template reads"
        )
    return ""
