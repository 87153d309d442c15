"""Write a plan in the form of a plan file, for a run folder or a dry run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from serve_eval.plan.parse import SECTIONS
from serve_eval.schema import ModelPreset, Plan, Spec

NOT_SAVED = ("allow_code_execution", "base_url", "cases", "effort", "output_dir", "protocol")
"""Keys of a plan file that `to_file` leaves out. The launcher holds the address, the tasks hold
the case files and the protocol, and the preset holds the effort once the model is known. Running
code must be allowed each time."""


def to_file(plan: Plan) -> dict[str, Any]:
    """Return the plan in the form of a plan file, which `resolve` reads back.

    It leaves out `allow_code_execution`, which must be given again, since a run folder may come
    from someone else. For the same reason, the `include_path` of a saved plan goes through
    `trust.trusted` first.
    """
    named = [
        {spec.name: dict(spec.options)} if spec.options else spec.name
        for spec in (*plan.tasks, plan.verdict)
    ]
    usual_rule = not plan.rule_named and plan.verdict == Spec(name="classic")
    content: dict[str, Any] = {
        "model": plan.model,
        "reference_model": plan.reference_model,
        "launcher": {"name": plan.launcher.name, **plan.launcher.options},
        "tasks": named[:-1],
        "verdict": None if usual_rule else named[-1],
        "dataset_root": list(plan.dataset_roots),
        "include_path": list(plan.include_path),
        "references_dir": plan.references_dir,
        "allow_mismatch": list(plan.allow_mismatch),
        "shard": None if plan.shard is None else str(plan.shard),
        "server_defaults": None if plan.server_defaults == "neutral" else plan.server_defaults,
        "expect": dict(plan.expect),
        "samples": _samples_in_file(plan),
        "repeats": _repeats_in_file(plan),
        **_preset_in_file(plan.preset),
        **{name: getattr(plan, name) for name in ("allow_hub", "limit", "seed", "early_stop")},
        **{
            name: getattr(plan, name)
            for name in (
                *("no_reference", "allow_missing_reference", "allow_meaningless"),
                *("no_prompts", "no_media"),
            )
        },
    }
    for name, kind in SECTIONS.items():
        section = getattr(plan, name)
        content[name] = {
            f.name: getattr(section, f.name)
            for f in fields(kind)
            if getattr(section, f.name) is not None
        }
    return {key: value for key, value in content.items() if value not in (None, [], {}, False, "")}


def _samples_in_file(plan: Plan) -> list[str] | dict[str, list[str]]:
    if not plan.samples_of:
        return list(plan.samples)
    named = {spec.name: plan.samples_of.get(spec.name, plan.samples) for spec in plan.tasks}
    return {name: list(ids) for name, ids in named.items() if ids}


def _preset_in_file(preset: ModelPreset | None) -> Mapping[str, Any]:
    """Return the keys of a preset: what was taken, or what is to be when the model is known."""
    if preset is None:
        return {}
    if not preset.taken:
        return {"preset": preset.name, "effort": preset.effort}
    return {"preset": {name: value for name, value in asdict(preset).items() if value}}


def _repeats_in_file(plan: Plan) -> int | dict[str, int] | None:
    if plan.repeats_of:
        return {spec.name: times for spec in plan.tasks if (times := plan.times(spec.name)) > 1}
    return plan.repeats if plan.repeats > 1 else None
