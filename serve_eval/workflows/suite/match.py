"""Match runs and tasks against the patterns of `exclude` and waivers.

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
from serve_eval.plugins.registry import nearest
from serve_eval.schema import AccuracySpec, Plan, Scalar, SuiteRun
from serve_eval.schema.base_url import normalise_base_url

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
        "endpoint": _endpoint(plan),
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


def _endpoint(plan: Plan) -> tuple[object, ...]:
    return plan.launcher.name, plan.launcher.options.get("base_url")


def _same_address(url: object, plan: Plan) -> bool:
    """Return True if a URL is the plan's address in another form."""
    try:
        return normalise_base_url(str(url)) == plan.launcher.options.get("base_url")
    except PlanError:
        return False
