"""Let runs with several reasoning efforts share a column: their rows are what a table compares.

An effort sets sampling, thoughts and more, as the model's card says. These settings differ because
the efforts do, and tell rows apart, not tasks.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from serve_eval.schema import Plan, Report, Spec, TaskReport
from serve_eval.series.planned_tasks import PlannedTask

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
