"""Complete the tasks of a plan from a preset and an effort.

The plan keeps the values, so that a later table changes no saved plan. What a user sets explicitly,
in the plan or by a flag, wins over the preset.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from serve_eval.errors import PlanError
from serve_eval.plan.plan_file import Problems
from serve_eval.protocol import shared
from serve_eval.protocol.presets import (
    ALL,
    EFFORTS,
    SWITCHES,
    TEMPLATE_FIELDS,
    PresetRow,
    PresetTable,
    choose_options,
    merge_bodies,
    read_presets,
)
from serve_eval.schema import AUTO, ModelPreset, Plan, Spec, Task

PRESET, EFFORT = "preset", "effort"
"""Keys of a plan file. In a saved plan, `preset` is a mapping that says what was taken."""
CHAT_ONLY = ("thinking", TEMPLATE_FIELDS, "reasoning_effort")
"""Options and fields that mean nothing in a request without a chat."""


def read_preset(given: object, effort: object, problems: Problems) -> ModelPreset | None:
    """Return the preset that a plan names, or the one that it was completed from before.

    `given` is the value of its key, and `effort` that of its key as it is written, since a list of
    efforts needs advice.
    """
    if isinstance(given, Mapping):
        if effort is not None:
            problems.add((EFFORT,), _explain_taken(given))
        return _read_record(given, problems)
    named = _read_effort(effort, problems)
    if given is None and not named:
        return None
    return ModelPreset(name=str(given or ""), effort=named)


def _read_record(given: Mapping[str, Any], problems: Problems) -> ModelPreset | None:
    """Return the record of a preset that a saved plan has."""
    try:
        record = msgspec.convert(given, ModelPreset)
    except msgspec.ValidationError as error:
        record, why = ModelPreset(), str(error)
    else:
        why = "there is no `table`"
    if not record.taken:
        problems.add((PRESET,), f"expected a name, or what a run saved, and {why}")
        return None
    return record


def _read_effort(effort: object, problems: Problems) -> str:
    several = effort if isinstance(effort, list) else str(effort or "").split(",")
    words = [str(one).strip() for one in several]
    if len(words) > 1 or isinstance(effort, list):
        listed = ", ".join(words)
        problems.add(
            (EFFORT,),
            f"a run has one effort, not {listed}; a suite asks with each of them: write"
            f" `matrix: {{effort: [{listed}]}}` into a suite file, and run serve-eval run FILE",
        )
        return ""
    if words[0] and words[0] not in EFFORTS:
        problems.add((EFFORT,), f"expected {' or '.join(EFFORTS)}, not {words[0]!r}")
        return ""
    return words[0]


def _explain_taken(given: Mapping[str, Any]) -> str:
    """Return why a plan that has the values of a preset can take no other."""
    named = given.get("name") or f"the effort {given.get(EFFORT)}"
    return (
        f"the tasks of this plan have the values of {named} already; begin with a plan without"
        " them, or set single options"
    )


def check_untaken(in_file: object, chosen: object, problems: Problems) -> None:
    """Add a problem if a flag names a preset for a plan that has the values of one."""
    if isinstance(in_file, Mapping) and chosen is not None:
        problems.add((PRESET,), _explain_taken(in_file))


def settle_preset(plan: Plan) -> Plan:
    """Return the plan with the values of its preset in its tasks, if its model is known.

    Raises PlanError for an unknown preset or effort, and if the preset is to follow from a model
    that the table does not have.
    """
    if plan.preset is None:
        return plan
    models = [one for one in (plan.model, plan.reference_model) if one]
    preset, tasks = take_preset(plan.preset, plan.tasks, models if plan.model else [])
    return replace(plan, preset=preset, tasks=tasks)


def take_preset(
    preset: ModelPreset, tasks: Sequence[Spec], models: Sequence[str]
) -> tuple[ModelPreset, tuple[Spec, ...]]:
    """Return the preset as it is taken, and the tasks with its values.

    Without `models`, which are the names of the model, a preset that follows from them is not taken
    yet. Raises PlanError as `settle_preset` does.
    """
    if preset.taken or (not models and preset.name in ("", AUTO)):
        return preset, tuple(tasks)
    table = read_presets()
    row, family = _find_rows(preset, models, table)
    options = choose_options(row, preset.effort, family, table)
    used = family if row is None else table.find(_name_row(row, preset.effort))
    taken = ModelPreset(
        name="" if row is None else used.name,
        effort=preset.effort,
        table=table.version,
        source=used.source,
        read=used.read,
        values=options,
    )
    return taken, tuple(complete(task, options) for task in tasks)


def _name_row(row: PresetRow, effort: str) -> str:
    """Return the name of the row with the sampling for an effort."""
    wanted = dict(row.effort).get(effort)  # type: ignore[call-overload]
    return row.name if wanted is None else wanted.row or row.name


def _find_rows(
    preset: ModelPreset, models: Sequence[str], table: PresetTable
) -> tuple[PresetRow | None, PresetRow]:
    """Return the row of the preset (None: none is wanted), and that of the model's family."""
    if preset.name not in ("", AUTO):
        row = table.find(preset.name)
        return row, row
    found = table.find_for(models)
    if found is None:
        shown = " and ".join(models)
        if preset.name:
            raise PlanError(
                f"auto: the table of presets has no row for {shown}",
                hint=f"Name one with --preset NAME, or none and set single options. {ALL}.",
            )
        raise PlanError(
            f"the table of presets does not say how {shown} is asked for an effort",
            hint=(
                "Name a preset of the same family with --preset NAME, or send the server's own"
                ' field, for example --set protocol.extra_body=\'{"reasoning_effort": "high"}\'.'
                f" {ALL}."
            ),
        )
    return (found if preset.name else None), found


def complete(task: Spec, options: Mapping[str, Any]) -> Spec:
    """Return a task with these options below its own.

    A task that asks for likelihoods has no sampling and stays as it is. Cards speak of chats, so a
    task that can be asked by chat is, unless its options say otherwise: then what only a chat has
    is left out.
    """
    made, by_chat = _build(task)
    if made is None or made.prompt_logprobs:
        return task
    below = dict(options)
    if task.options.get("apply_chat_template") is False:
        below = _without_chat(below)
    elif by_chat or not made.chat:
        below = {"apply_chat_template": True, **below}
    own = task.options.get("extra_body") or {}
    merged = {**below, **task.options}
    if isinstance(own, Mapping) and isinstance(body := below.get("extra_body"), Mapping):
        if "thinking" in task.options:
            body = _without_switches(body)
        if fields := merge_bodies(body, own):
            merged["extra_body"] = fields
        else:
            merged.pop("extra_body", None)
    return replace(task, options=merged)


def _build(task: Spec) -> tuple[Task | None, bool]:
    """Return the task with its own options, and whether these need a chat that they do not ask for.

    None: its options are wrong, which `check_specs` reports.
    """
    for more in ({}, {"apply_chat_template": True}):
        try:
            made = shared.build_task(replace(task, options={**more, **task.options}))
        except PlanError:
            continue
        return made, bool(more)
    return None, False


def _without_chat(options: Mapping[str, Any]) -> dict[str, Any]:
    kept = {name: value for name, value in options.items() if name not in CHAT_ONLY}
    if body := {k: v for k, v in kept.pop("extra_body", {}).items() if k not in CHAT_ONLY}:
        kept["extra_body"] = body
    return kept


def _without_switches(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return fields of requests without the switches of thinking, which a user chose otherwise."""
    variables = body.get(TEMPLATE_FIELDS)
    if not isinstance(variables, Mapping):
        return dict(body)
    kept = {name: value for name, value in variables.items() if name not in SWITCHES}
    rest = {name: value for name, value in body.items() if name != TEMPLATE_FIELDS}
    return {**rest, **({TEMPLATE_FIELDS: kept} if kept else {})}
