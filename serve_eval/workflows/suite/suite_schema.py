"""Describe a suite file as JSON Schema."""

from __future__ import annotations

from serve_eval.json_schema import Schema, close_object, describe_type, name_schema
from serve_eval.plan.plan_file import describe_keys, describe_launchers
from serve_eval.schema import AccuracySpec, Scalar
from serve_eval.workflows.suite.match import PLAIN
from serve_eval.workflows.suite.matrix import ATTRIBUTES, LABEL, TASK_LABEL

SUITE_VERSION = 1
"""The version of the form of suite files. Raise it if a key goes or changes its meaning."""
_ATTRIBUTES: Schema = {"type": "object", "additionalProperties": describe_type(Scalar)}
_TEXT: Schema = {"type": "string"}


def describe_suite() -> Schema:
    """Return the schema of a suite file."""
    keys = {name: schema for name, schema in describe_keys().items() if name != "output_dir"}
    references = {name: {"$ref": f"#/$defs/plan/properties/{name}"} for name in keys}
    part = {"description": "The part of the name that tells only the tasks.", **_TEXT}
    entry = {"plan": _TEXT, "name": _TEXT, ATTRIBUTES: _ATTRIBUTES, TASK_LABEL: part, **references}
    fragment = {LABEL: _TEXT, ATTRIBUTES: _ATTRIBUTES, **references}
    pattern = close_object(_describe_pattern())
    waiver = close_object(
        {"match": pattern, "reason": _TEXT, "until": {"type": "string", "format": "date"}},
        required=("match", "reason", "until"),
    )
    suite = close_object(
        {
            "name": {"description": "Name of the suite (default: of the file).", **_TEXT},
            "defaults": {
                "description": "Keys of a plan that apply below those of every run.",
                **close_object({ATTRIBUTES: _ATTRIBUTES, **references}),
            },
            "plans": {
                "description": "Plans, or paths of plan files relative to this file.",
                "type": "array",
                "items": {"anyOf": [_TEXT, close_object(entry)]},
            },
            "matrix": {
                "description": "Axes: each combination of their values is a run.",
                "type": "object",
                "additionalProperties": {
                    "type": "array",
                    "minItems": 1,
                    "items": {"anyOf": [{"$ref": "#/$defs/fragment"}, {}]},
                },
            },
            "exclude": {
                "description": "Runs and tasks that are left out.",
                "type": "array",
                "items": pattern,
            },
            "waivers": {
                "description": "Failures that are expected, each until a day.",
                "type": "array",
                "items": waiver,
            },
            "max_runs": {
                "description": "The largest number of runs.",
                "type": "integer",
                "minimum": 1,
            },
        }
    )
    suite["$defs"] = {
        "plan": close_object(keys),
        "fragment": close_object(fragment),
        **describe_launchers(),
    }
    return name_schema(suite, "suite", SUITE_VERSION, "A suite of serve-eval run")


def _describe_pattern() -> dict[str, Schema]:
    """Return the keys by which runs and tasks are matched."""
    from dataclasses import fields

    one_or_more: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
    spec = close_object({field.name: {} for field in fields(AccuracySpec)})
    attributes: Schema = {"type": "object"}
    return {**dict.fromkeys(PLAIN, one_or_more), "accuracy_spec": spec, ATTRIBUTES: attributes}
