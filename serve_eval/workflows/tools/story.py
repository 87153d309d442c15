"""Check tool calls and guided decoding of an endpoint, and name the parser or stream at fault.

The set is asked whole and streamed, at several numbers of requests in flight, in a random order of
the passes. OUT/whole_1, OUT/stream_8 and so on are ordinary run folders, OUT/tools_plan.json holds
what was asked and what the endpoint supports, and OUT/tools.json is the result. The same command
resumes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from serve_eval.errors import PlanError, RunFolderError
from serve_eval.evaluation.endpoint.launch import launch
from serve_eval.evaluation.passes import PassSettings, check_same_passes, settle_order
from serve_eval.evaluation.run_session import ignore
from serve_eval.evaluation.session_log import Stopwatch
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.scope import with_scope
from serve_eval.schema import Plan, Progress, Spec, ToolCheck
from serve_eval.scorers._served_call import CallFault
from serve_eval.shell_words import quote_path
from serve_eval.storage import run_folder
from serve_eval.storage.file_names import SERVERS
from serve_eval.storage.story_files import TOOLS
from serve_eval.verdicts.exit_code import went_through
from serve_eval.workflows.tools.answers import TASK, ToolPass, sum_up
from serve_eval.workflows.tools.asking import (
    REFUSALS,
    ToolsPlan,
    ask_passes,
    choose_kinds,
    list_kinds,
    name_folder,
    order_passes,
    prepare_set,
    probe_endpoint,
    read_passes,
)
from serve_eval.workflows.tools.judging import find_exit_code, judge_passes, list_remarks

LOADS = (1, 8, 32, 128)
"""Default numbers of requests in flight."""
HIGHEST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolRules:
    """Thresholds, an earlier check and required kinds, by which answers are judged.

    `limits` replaces thresholds by the name of the error. `reference` is the folder of an earlier
    check. The kinds in `needed` must be supported, and with REFUSALS, fields be refused.
    """

    limits: Mapping[str, float] = field(default_factory=dict)
    reference: Path | None = None
    needed: frozenset[str] = frozenset()


def check_limits(limits: Mapping[str, float]) -> None:
    """Raise PlanError for an unknown error or a share outside 0 to 1."""
    known = [fault.value for fault in CallFault]
    for name, share in limits.items():
        if name not in known:
            raise PlanError(f"tools.max: {name}: no such error", hint=f"Known: {', '.join(known)}.")
        if not 0.0 <= share < 1.0:
            raise PlanError(f"tools.max: {name}={share:g}: expected a share from 0 to 1")


@with_scope
async def check_tools(
    plan: Plan,
    out_dir: Path,
    loads: Sequence[int] = LOADS,
    *,
    rules: ToolRules | None = None,
    progress: Progress | None = None,
    environ: Mapping[str, str] = os.environ,
    notify: Callable[[str], None] = ignore,
) -> ToolCheck:
    """Ask what is left to ask, judge all passes, and write tools.json.

    Raises ServeEvalError for what stops a run.
    """
    clock, loads, rules = Stopwatch(), tuple(sorted(set(loads))), rules or ToolRules()
    limits = replace(plan.limits, concurrency=loads[0], max_error_rate=1.0)
    plan = replace(plan, tasks=plan.tasks or (Spec(name=TASK),), limits=limits)
    plan = choose_kinds(plan, list_kinds(plan))
    saved = TOOLS.find_plan(out_dir, ToolsPlan)
    plan, prepared = await prepare_set(plan, out_dir, loads, environ)
    shared = PassSettings(
        command=TOOLS.command, out_dir=out_dir, progress=progress, environ=environ, notify=notify
    )
    with run_folder.hold(out_dir, TOOLS.plan, "such checks"):
        TOOLS.drop(out_dir)
        logs = out_dir / SERVERS
        logs.mkdir(mode=0o700, exist_ok=True)
        async with launch(plan, [prepared], logs, notify=notify) as endpoint:
            if saved is None or not run_folder.has_answers_below(out_dir):
                samples = prepared.dataset.samples
                saved = await probe_endpoint(plan, loads, samples, endpoint, environ)
                TOOLS.write_plan(out_dir, saved)
            kinds = list_kinds(saved.plan)
            plan, prepared = await prepare_set(choose_kinds(plan, kinds), out_dir, loads, environ)
            _check_same(out_dir, saved, plan, loads)
            runs = [out_dir / name_folder(*one) for one in order_passes(loads, 0)]
            seed = settle_order(out_dir, plan, runs, notify)
            passes, gave_up = await ask_passes(saved, prepared, endpoint, shared, seed)
        found = _judge(saved, prepared, passes, rules)
        found = replace(
            found,
            remarks=(*gave_up, *found.remarks),
            started_at=clock.started_at,
            wall_s=clock.wall_s,
        )
        TOOLS.write(out_dir, found)
    return found


def _check_same(out_dir: Path, saved: ToolsPlan, plan: Plan, loads: Sequence[int]) -> None:
    """Raise RunFolderError if the folder has answers to something else."""
    check_same_passes(out_dir, saved.plan, plan, ("order",))
    if saved.loads != tuple(loads) and run_folder.has_answers_below(out_dir):
        raise RunFolderError(
            f"{out_dir} holds the loads {', '.join(map(str, saved.loads))}",
            hint="Use another folder with -o.",
        )


def _judge(
    asked: ToolsPlan, prepared: PreparedTask, passes: Sequence[ToolPass], rules: ToolRules
) -> ToolCheck:
    if not passes:
        raise RunFolderError("no pass could be asked to the end")
    reference = [] if rules.reference is None else _read_reference(rules.reference, prepared)
    findings = judge_passes(passes, reference, rules.limits)
    lacking = [one.name for one in asked.unsupported if one.name in rules.needed]
    lacking += [
        one.name
        for one in asked.parameters
        if one.outcome == "IGNORED" and REFUSALS in rules.needed
    ]
    failed = any(one.outcome == "FAIL" for one in asked.parameters)
    failed |= bool(findings or lacking)
    code, rehearsal = find_exit_code(passes, failed=failed), passes[0].report.rehearsal
    return ToolCheck(
        rehearsal=rehearsal,
        schema_version=TOOLS.version,
        model=asked.plan.model,
        base_url=passes[0].report.endpoint.base_url,
        fingerprint=prepared.fingerprint["samples"],
        kinds=list_kinds(asked.plan),
        unsupported=asked.unsupported,
        parameters=asked.parameters,
        cells=tuple(map(sum_up, passes)),
        findings=findings,
        remarks=tuple(list_remarks(passes, reference, lacking)),
        reference=None if rules.reference is None else str(rules.reference),
        requests=sum(one.report.tasks[0].result.planned for one in passes),
        exit_code=went_through(code) if rehearsal else code,
        started_at="",
        wall_s=0.0,
    )


def _read_reference(folder: Path, prepared: PreparedTask) -> list[ToolPass]:
    """Return the passes of an earlier check of the same requests. Raises RunFolderError."""
    earlier, asked = TOOLS.read(folder, ToolCheck), TOOLS.find_plan(folder, ToolsPlan)
    if earlier is None:
        raise RunFolderError(
            f"{folder} has no result of `serve-eval check tools`",
            hint=f"Finish it first: serve-eval check tools ENDPOINT -o {quote_path(folder)}",
        )
    if asked is None or earlier.fingerprint != prepared.fingerprint["samples"]:
        kinds = ", ".join(earlier.kinds)
        raise RunFolderError(
            f"{folder} holds other requests ({kinds})",
            hint="Ask the same kinds with --set tools.kinds=NAMES, and the same --limit and seed.",
        )
    return read_passes(folder, asked.loads, prepared.dataset.samples)
