"""Describe a plan file as JSON Schema, from the declarations of its options."""

from __future__ import annotations

from collections.abc import Iterator

from serve_eval.json_schema import Schema, close_object, describe_type, name_schema
from serve_eval.plan.options import ProtocolOptions, keys_in_file
from serve_eval.plan.parse import LAUNCHERS, SECTIONS, TASKS, VERDICTS, scalar_kinds
from serve_eval.plugins import registry
from serve_eval.plugins.setting import list_declared
from serve_eval.plugins.values import load_launcher

PLAN_VERSION = 1
"""The version of the form of plan files. Raise it if a key goes or changes its meaning."""
OR_NOTHING = {"type": "null"}
_PREFIX = "launcher_"


def describe_plan() -> Schema:
    """Return the schema of a plan file."""
    plan = {**close_object(describe_keys()), "$defs": describe_launchers()}
    return name_schema(plan, "plan", PLAN_VERSION, "A plan of serve-eval run")


def describe_launchers() -> dict[str, Schema]:
    """Return the definitions that `describe_keys` refers to: the options of each launcher."""
    return {
        f"{_PREFIX}{name}": _describe_options(name) for name in registry.list_shipped(LAUNCHERS)
    }


def describe_keys() -> dict[str, Schema]:
    """Return the schema of each key of a plan file.

    Tasks, launchers and verdict rules of the user have any name, so names are suggestions.
    """
    told = {key: option.setting.help for key, option in keys_in_file()}
    found = {
        key: _allow_nothing(describe_type(kind), told.get(key, ""))
        for key, kind in scalar_kinds().items()
    }
    found["protocol"] = _describe_protocol()
    for name, kind in SECTIONS.items():
        found[name] = _describe_section(name, kind, told)
    task = _describe_spec(registry.list_shipped(TASKS))
    found["tasks"] = {"description": told.get("tasks", ""), "type": "array", "items": task}
    verdict = _describe_spec(registry.list_shipped(VERDICTS))
    found["verdict"] = {"description": told.get("verdict", "Verdict rule."), **verdict}
    found["launcher"] = _describe_launcher()
    return dict(sorted(found.items()))


def _describe_section(name: str, kind: type, told: dict[str, str]) -> Schema:
    inner = describe_type(kind)
    definition = inner["$defs"][inner["$ref"].rpartition("/")[2]]
    fields = {
        field: {**schema, "description": told.get(f"{name}.{field}", "")}
        for field, schema in definition["properties"].items()
    }
    return {"description": definition["description"], **_close_or_leave_out(fields)}


def _describe_protocol() -> Schema:
    """Return the schema of the options of all tasks; tasks may have more of their own."""
    known = {
        option.key: _allow_nothing({}, option.setting.help)
        for option in list_declared(ProtocolOptions)
    }
    return {"description": ProtocolOptions.__doc__ or "", "type": "object", "properties": known}


def _describe_launcher() -> Schema:
    """Return the schema of a launcher; those that ship refuse options that they do not have."""
    names = registry.list_shipped(LAUNCHERS)
    return {
        "description": "Start the endpoint with this launcher.",
        **_describe_spec(names),
        "allOf": [rule for name in names for rule in _refer_to(name)],
    }


def _refer_to(name: str) -> Iterator[Schema]:
    """Yield a rule for each form of a launcher with options."""
    definition = {"$ref": f"#/$defs/{_PREFIX}{name}"}
    named = {"type": "object", "properties": {"name": {"const": name}}, "required": ["name"]}
    yield {"if": named, "then": definition}
    yield {"if": {"type": "object", "maxProperties": 1}, "then": {"properties": {name: definition}}}


def _describe_options(name: str) -> Schema:
    options = {
        option: _allow_nothing(_describe_hint(found.hint), found.meaning)
        for option, found in load_launcher(name).options.items()
    }
    return _close_or_leave_out({"name": {"const": name}, **options})


def _describe_hint(hint: object) -> Schema:
    """Return the schema of an option; the definitions of its structures are left open."""
    schema = describe_type(hint)
    return {} if "$defs" in schema else schema


def _describe_spec(names: list[str]) -> Schema:
    """Return the schema of `name`, `{name: NAME, option: value}` and `{NAME: {options}}`."""
    return {"anyOf": [{"enum": names}, {"type": "string"}, {"type": "object", "minProperties": 1}]}


def _close_or_leave_out(properties: dict[str, Schema]) -> Schema:
    return {**close_object(properties), "type": ["object", "null"]}


def _allow_nothing(schema: Schema, description: str) -> Schema:
    """Return a schema that also accepts a key without a value, as plan files may have."""
    return {"description": description, **({"anyOf": [schema, OR_NOTHING]} if schema else {})}
