"""Convert a plan file into typed values, describe it as JSON Schema, or write it.

All problems are collected. The keys and their types are those of the options (see options.py). The
sections are nouns of the schema.
"""

from __future__ import annotations

import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, fields
from typing import Any

import msgspec

from serve_eval.client import connection
from serve_eval.json_schema import Schema, close_object, describe_type, name_schema
from serve_eval.plan.options import (
    SAMPLING_SEED,
    ProtocolOptions,
    keys_in_file,
    list_protocol_fields,
)
from serve_eval.plan.shared_options import SPEC
from serve_eval.plugins import registry
from serve_eval.plugins.closest import find_misspelt
from serve_eval.plugins.setting import SAME, list_declared
from serve_eval.plugins.values import load_launcher
from serve_eval.schema import AccuracySpec, Connection, Limits, ModelPreset, Plan, Spec

TASKS, LAUNCHERS, VERDICTS = "serve_eval.tasks", "serve_eval.launchers", "serve_eval.verdicts.rules"
SECTIONS: dict[str, type] = {
    "accuracy_spec": AccuracySpec,
    "connection": Connection,
    "limits": Limits,
}
"""Keys that hold a mapping of fields."""


def scalar_kinds() -> dict[str, Any]:
    """Return the keys of a plan file that hold one value or a list, with their types."""
    found = {
        key: option.kind if option.setting.in_file is SAME else option.setting.in_file
        for key, option in keys_in_file()
        if "." not in key and option.setting.in_file is not SPEC
    }
    return {**found, "protocol": dict[str, Any]}


_SCALARS = scalar_kinds()
_SPECS = ("tasks", "launcher", "verdict")
KEYS = (*_SCALARS, *SECTIONS, *_SPECS)
"""Every key of a plan file."""


class Problems:
    """Collect problems, each with its line in the file if there is one."""

    def __init__(self, line: Callable[..., str]) -> None:
        self.found: list[str] = []
        self._line = line

    def add(self, path: tuple[str | int, ...], message: str) -> None:
        """Add the problem at a path of the plan."""
        shown = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(
            "."
        )
        self.found.append(f"{self._line(*path)}{shown}: {message}")


def scalars(
    file: Mapping[str, Any], settings: Mapping[str, Any], problems: Problems
) -> dict[str, Any]:
    """Return the converted values that are neither sections nor names with options.

    Flags override the file.
    """
    for key in file:
        if key not in KEYS:
            secret = connection.looks_secret(str(key)) and not _find_misspelt(str(key))
            message = f"unknown key.{_suggest(str(key), file[key])}"
            problems.add((key,), connection.KEY_ADVICE if secret else message)
    values: dict[str, Any] = {}
    for name, kind in _SCALARS.items():
        raw = settings.get(name, file.get(name))
        if name == "samples" and isinstance(raw, int):
            message = f"expected ids of samples, not {raw}; to ask any {raw} samples, use limit"
            problems.add((name,), message)
        elif raw is not None:
            _convert(raw, kind, (name,), values, problems)
    return values


def _suggest(key: str, value: Any) -> str:
    """Return the key that was probably meant; options of the protocol are below its key."""
    field = "seed" if key == SAMPLING_SEED else _find_misspelt(key) or key
    if field in list_protocol_fields():
        return f" Did you mean `protocol: {{{field}: {value}}}`?"
    return registry.nearest(key, KEYS)


def _find_misspelt(key: str) -> str:
    """Return the key of a plan or of its protocol that this one misspells, or ""."""
    return find_misspelt(key, (*KEYS, *list_protocol_fields()))


def section(
    name: str, kind: type, file: Mapping[str, Any], settings: Mapping[str, Any], problems: Problems
) -> dict[str, Any]:
    """Return the given fields of a section, converted. Flags override the file."""
    given = file.get(name) or {}
    if not isinstance(given, Mapping):
        problems.add((name,), "expected a mapping")
        given = {}
    hints = typing.get_type_hints(kind)
    for key in given:
        if key not in hints:
            secret = name == "connection" and connection.looks_secret(str(key))
            problems.add(
                (name, key),
                (
                    connection.KEY_ADVICE
                    if secret
                    else f"unknown key.{registry.nearest(str(key), hints)}"
                ),
            )
    found: dict[str, Any] = {}
    for field, hint in hints.items():
        raw = settings.get(field, given.get(field))
        if raw is not None:
            _convert(raw, hint, (name, field), found, problems)
    return found


def spec_of(raw: Any, folder: str, path: tuple[str | int, ...], problems: Problems) -> Spec:
    """Read `name`, `{name: {options}}` or `{name: NAME, option: value}`."""
    if isinstance(raw, str):
        return Spec(name=raw)
    if isinstance(raw, Mapping) and isinstance(raw.get("name"), str):
        return Spec(
            name=raw["name"], options={key: value for key, value in raw.items() if key != "name"}
        )
    if isinstance(raw, Mapping) and len(raw) == 1:
        name, options = next(iter(raw.items()))
        if options is None or isinstance(options, Mapping):
            return Spec(name=str(name), options=dict(options or {}))
    problems.add(path, "expected a name, or a name with a mapping of options")
    return Spec(name=registry.names(folder)[0])


def tasks_of(
    in_file: Any, chosen: list[str] | None, problems: Problems, *, needed: bool
) -> list[Spec]:
    """Return the tasks of the file, or the chosen tasks with their options in the file."""
    if in_file is not None and not isinstance(in_file, list):
        problems.add(("tasks",), "expected a list")
        in_file = []
    listed = [spec_of(raw, TASKS, ("tasks", i), problems) for i, raw in enumerate(in_file or [])]
    if chosen is not None:
        by_name = {spec.name: spec for spec in listed}
        listed = [by_name.get(name, Spec(name=name)) for name in chosen]
    if needed and not listed and not problems.found:
        advice = "for example --tasks gsm8k. All: serve-eval data list tasks"
        problems.add(("tasks",), f"name at least one task, {advice}")
    names = [spec.name for spec in listed]
    for name in sorted({name for name in names if names.count(name) > 1}):
        problems.add(("tasks",), f"{name} is listed twice")
    return listed


def _convert(
    raw: Any, kind: Any, path: tuple[str | int, ...], into: dict[str, Any], problems: Problems
) -> None:
    try:
        into[str(path[-1])] = msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        choices = _choices(kind)
        wrong_word = choices and "Invalid enum value" in str(error)
        problems.add(
            path,
            f"expected {choices}, not {raw!r}"
            if wrong_word
            else f"{error}{choices and f'; expected {choices}'}",
        )


def _choices(kind: Any) -> str:
    """Return the values of a field that takes only some words, and perhaps a number."""
    words = [
        word
        for part in (kind, *typing.get_args(kind))
        for word in typing.get_args(part)
        if isinstance(word, str)
    ]
    words += [word for word in typing.get_args(kind) if isinstance(word, str)]
    numbers = ["a number"] if int in typing.get_args(kind) else []
    return " or ".join((*numbers, *dict.fromkeys(words))) if words else ""


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


NOT_SAVED = (
    "allow_code_execution",
    "base_url",
    "cases",
    "effort",
    "output_dir",
    "protocol",
    "requests",
)
"""Keys of a plan file that `to_file` leaves out. The launcher holds the address, the tasks hold
the case files, the recorded requests and the protocol, and the preset holds the effort once the
model is known. Running code must be allowed each time."""


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
        **{
            name: getattr(plan, name)
            for name in ("allow_hub", "limit", "seed", "early_stop", "gpus", "end_when_certain")
        },
        **{
            name: getattr(plan, name)
            for name in (
                *("no_reference", "allow_missing_reference", "allow_meaningless"),
                *("no_prompts", "no_media", "accept_identical"),
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
