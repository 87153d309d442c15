"""Say what a run was to ask, and let several reasoning efforts share a column.

An effort sets sampling, thoughts and more, as the model's card says. These settings differ because
the efforts do, and tell rows apart, not tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from serve_eval.errors import RunFolderError, ServeEvalError
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Metric, Plan, Report, Spec, Task, TaskReport
from serve_eval.series.deployments import SEED, read_seed
from serve_eval.storage.run_folder import read_fingerprints, read_plan


@dataclass(frozen=True, slots=True, kw_only=True)
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
