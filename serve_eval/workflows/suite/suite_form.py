"""Describe the form of a suite file: its schema, its patterns, a suite written out.

    {model: Qwen/Qwen3-8B, task: [mmlu, gsm8k], accuracy_spec: {quant_algo: FP8},
     attributes: {size: 8B}}

Every key must match; a list matches any of its values. `name` is that of the run; `endpoint` is its
base URL or launcher.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.json_schema import Schema, close_object, describe_type, name_schema
from serve_eval.plan.plan_file import describe_keys, describe_launchers, to_file
from serve_eval.plugins.registry import nearest
from serve_eval.schema import AccuracySpec, Plan, Scalar, Suite, SuiteRun
from serve_eval.schema.base_url import normalise_base_url
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
            "end_when_certain": {
                "description": "Ask nothing more once a FAIL is certain.",
                "type": "boolean",
            },
            "max_tokens_total": {
                "description": "The tokens that all plans may cost together.",
                "type": "integer",
                "minimum": 1,
            },
            "max_time_s": {
                "description": "The seconds of asking of all plans together.",
                "type": "number",
                "exclusiveMinimum": 0,
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

    one_or_more: Schema = {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}]}
    spec = close_object({field.name: {} for field in fields(AccuracySpec)})
    attributes: Schema = {"type": "object"}
    return {**dict.fromkeys(PLAIN, one_or_more), "accuracy_spec": spec, ATTRIBUTES: attributes}


PLAIN = ("name", "task", "model", "endpoint")
NESTED = ("accuracy_spec", "attributes")
_FIELDS = tuple(f.name for f in fields(AccuracySpec))


def matches(pattern: Mapping[str, Any], run: SuiteRun, task: str | None = None) -> bool:
    """Return True if a pattern matches a run and its task. Without a task, `task` is ignored."""
    plan = run.plan
    plain = {
        "name": (run.name,),
        "task": (task,),
        "model": (plan.model,),
        "endpoint": (plan.launcher.name, plan.launcher.options.get("base_url")),
    }
    for key, wanted in pattern.items():
        if key == "accuracy_spec":
            held = all(
                _alike(value, getattr(plan.accuracy_spec, name)) for name, value in wanted.items()
            )
        elif key == "attributes":
            held = all(
                name in run.attributes and _alike(v, run.attributes[name])
                for name, v in wanted.items()
            )
        elif key == "task" and task is None:
            held = True
        else:
            held = any(_alike(wanted, value) for value in plain[key])
            held = held or (
                key == "endpoint" and any(_same_address(url, plan) for url in _each(wanted))
            )
        if not held:
            return False
    return True


def problems(pattern: object) -> Iterator[tuple[tuple[str | int, ...], str]]:
    """Yield the problems of a pattern as (path, message)."""
    if not isinstance(pattern, Mapping) or not pattern:
        yield (), f"expected a mapping with at least one of {', '.join((*PLAIN, *NESTED))}"
        return
    for key, value in pattern.items():
        if key in PLAIN:
            if not _plain(value):
                yield (key,), "expected a value or a list of values"
        elif key not in NESTED:
            yield (key,), f"unknown key.{nearest(str(key), (*PLAIN, *NESTED))}"
        elif not isinstance(value, Mapping) or not value:
            yield (key,), "expected a mapping"
        else:
            for name, inner in value.items():
                if key == "accuracy_spec" and name not in _FIELDS:
                    yield (key, name), f"unknown key.{nearest(str(name), _FIELDS)}"
                elif not _plain(inner) and not (inner is None and key == "accuracy_spec"):
                    yield (key, name), "expected a value or a list of values"


def _plain(value: object) -> bool:
    return bool(_each(value)) and all(
        isinstance(one, typing.get_args(Scalar)) for one in _each(value)
    )


def _each(wanted: Any) -> list[Any]:
    return wanted if isinstance(wanted, list) else [wanted]


def _alike(wanted: Any, value: object) -> bool:
    """Return True if a value matches. 8 and "8" match, because YAML may read either."""
    return any(
        one is value or (None not in (one, value) and str(one) == str(value))
        for one in _each(wanted)
    )


def _same_address(url: object, plan: Plan) -> bool:
    """Return True if a URL is the plan's address in another form."""
    try:
        return normalise_base_url(str(url)) == plan.launcher.options.get("base_url")
    except PlanError:
        return False


def suite_to_file(suite: Suite) -> dict[str, Any]:
    """Return the suite in the form of a suite file, which `file.read` reads back.

    It leaves out what `to_file` leaves out of each plan.
    """
    content: dict[str, Any] = {
        "name": suite.name,
        "plans": [
            {
                "name": run.name,
                **to_file(run.plan),
                **({"attributes": dict(run.attributes)} if run.attributes else {}),
                **({TASK_LABEL: run.task_label} if run.task_label else {}),
            }
            for run in suite.runs
        ],
        "max_runs": len(suite.runs),
    }
    for key in ("end_when_certain", "max_tokens_total", "max_time_s"):
        if value := getattr(suite, key):
            content[key] = value
    if suite.waivers:
        content["waivers"] = [
            {"match": one.match, "reason": one.reason, "until": one.until} for one in suite.waivers
        ]
    return content
