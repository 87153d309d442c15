"""Define the form of a case file, and find problems in a single case.

Both the checks and the JSON schema for editors are derived from it.
"""

from __future__ import annotations

import functools
import json
import math
import operator
import re
import typing
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from serve_eval.plugins.registry import nearest
from serve_eval.schema import MOST_REPEATS

Scorer = Annotated[
    str | dict[str, dict[str, Any] | None],
    Meta(description="A scorer by name, or its name with options: {words: {ignore_case: true}}."),
]
ScoredTurns = Annotated[
    Literal["each", "last"],
    Meta(
        description=(
            "The turns of a conversation that are scored: each with `expect`, or the last one"
            " (default: each, if a turn has `expect`)."
        )
    ),
]
Plain = str | int | float | bool | None
Whole = Annotated[int, Meta(ge=1)]
Filled = Annotated[str, Meta(min_length=1)]


class Turn(Struct, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str
    images: Annotated[
        list[str] | UnsetType, Meta(description="Image files in the folder of this file.")
    ] = UNSET
    audio: Annotated[
        list[str] | UnsetType, Meta(description="Sound files in the folder of this file.")
    ] = UNSET
    video: Annotated[
        list[str] | UnsetType, Meta(description="Video files in the folder of this file.")
    ] = UNSET


class SaidTurn(Struct, forbid_unknown_fields=True):
    """A turn of the user whose answer is the server's own."""

    say: Annotated[str, Meta(description="The user's turn; ${name} is filled in.")]
    expect: Annotated[Any, Meta(description="What its answer is scored by, as `expected` is.")] = (
        None
    )
    scorer: Scorer | UnsetType = UNSET
    results: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="Results of tools by name, for calls in this turn."),
    ] = UNSET


class Input(Struct):
    """The question of a case.

    Further keys are values for ${name}. Without `axes`, each mapping among them is an axis.
    """

    prompt: Annotated[
        str | dict[str, Any] | UnsetType,
        Meta(
            description=(
                "The user's turn; ${name} is filled in. A mapping is an axis, or the parts for"
                " `join`."
            )
        ),
    ] = UNSET
    system_messages: Annotated[
        str | list[str] | dict[str, Any] | UnsetType,
        Meta(description="System turns before the prompt, in order. A mapping is an axis."),
    ] = UNSET
    messages: Annotated[
        list[Turn] | UnsetType,
        Meta(description="Earlier turns. Without a prompt they include the last one."),
    ] = UNSET
    turns: Annotated[
        Annotated[list[str | SaidTurn], Meta(min_length=1)] | UnsetType,
        Meta(description="Turns of the user, which the server answers one by one."),
    ] = UNSET
    results: Annotated[
        dict[str, Any] | UnsetType,
        Meta(description="Results of tools by name, which the model's calls get."),
    ] = UNSET
    tool_rounds: Annotated[
        Whole | UnsetType,
        Meta(description="Most answers of a turn whose calls get results (default 8)."),
    ] = UNSET
    images: Annotated[
        list[str] | UnsetType,
        Meta(description="Image files in the folder of this file; they precede the text."),
    ] = UNSET
    audio: Annotated[
        list[str] | UnsetType,
        Meta(description="Sound files in the folder of this file; they follow the images."),
    ] = UNSET
    video: Annotated[
        list[str] | UnsetType,
        Meta(description="Video files in the folder of this file; they follow the sounds."),
    ] = UNSET
    tools: Annotated[
        list[dict[str, Any]] | UnsetType,
        Meta(description="Tools that the model may call, in the form of the API."),
    ] = UNSET
    tool_choice: Annotated[
        str | dict[str, Any] | UnsetType,
        Meta(description="Tool that the model may or must call, in the form of the API."),
    ] = UNSET


class OwnSampling(Struct, forbid_unknown_fields=True):
    """Sampling options that a single case may override."""

    max_tokens: Whole | UnsetType = UNSET
    stop: list[str] | UnsetType = UNSET


class SamplingForm(Struct, forbid_unknown_fields=True):
    """Sampling options of a task."""

    max_tokens: Annotated[
        Whole | UnsetType, Meta(description="Largest number of tokens of an answer (default 512).")
    ] = UNSET
    temperature: Annotated[
        float | UnsetType | None,
        Meta(description="0 is greedy (default 0); null leaves the field out of requests."),
    ] = UNSET
    top_p: float | UnsetType | None = UNSET
    seed: int | UnsetType | None = UNSET
    stop: list[str] | UnsetType = UNSET


class Case(Struct, forbid_unknown_fields=True):
    """A case: a question with its expected answer, or several of them by axes."""

    case: Annotated[
        str,
        Meta(min_length=1, description="Name; colons separate the fields that tables group by."),
    ]
    input: Input
    expected: Annotated[
        Any,
        Meta(
            description=(
                "The answer, or a mapping; {by: [axis], values: {...}} lists it for each key of an"
                " axis."
            )
        ),
    ] = None
    scorer: Scorer | UnsetType = UNSET
    score: ScoredTurns | UnsetType = UNSET
    group: Annotated[
        Filled | UnsetType,
        Meta(description="Name of what this case shares with others: a passage."),
    ] = UNSET
    sampling: OwnSampling | UnsetType = UNSET
    axes: Annotated[
        list[str] | UnsetType,
        Meta(description="Names of inputs that are axes; by default, all mappings."),
    ] = UNSET
    zip_with: Annotated[
        dict[str, str] | UnsetType,
        Meta(description="Inputs that vary with an axis: {format: query}."),
    ] = UNSET
    join: Annotated[
        dict[str, str] | UnsetType,
        Meta(
            description=(
                "Inputs that are mappings of parts, with the separator between the parts: {prompt:"
                ' " "}.'
            )
        ),
    ] = UNSET


class ModuleForm(Struct, forbid_unknown_fields=True):
    """A task: cases and their common settings."""

    cases: list[Case]
    description: str | UnsetType = UNSET
    scorer: Scorer | UnsetType = UNSET
    score: ScoredTurns | UnsetType = UNSET
    iterations: Annotated[
        Annotated[int, Meta(ge=1, le=MOST_REPEATS)] | UnsetType,
        Meta(description="Number of times that each case is asked (default 1)."),
    ] = UNSET
    sampling: SamplingForm | UnsetType = UNSET
    prompt: Annotated[str | UnsetType, Meta(description="Prompt of cases that have none.")] = UNSET
    system_messages: Annotated[
        list[str] | UnsetType, Meta(description="System turns of cases that have none.")
    ] = UNSET
    fields: Annotated[
        list[str] | UnsetType,
        Meta(description="Names of the fields of case names: [kind, domain, language]."),
    ] = UNSET
    group: Annotated[
        Filled | UnsetType,
        Meta(
            description=(
                "What cases share, so that they are right or wrong together: one of `fields`, an"
                " input such as passage, or a regular expression for their names."
            ),
        ),
    ] = UNSET


RESOURCES = "resources"


def keys(kind: type[Struct]) -> tuple[str, ...]:
    """Return the keys that a mapping of the form may have."""
    return tuple(field.name for field in msgspec.structs.fields(kind))


def problems(
    raw: dict[Any, Any], kind: type[Struct], *, leave: tuple[str, ...] = (), strict: bool = True
) -> list[tuple[str, str]]:
    """Return the problems of a mapping as (key, message).

    Other code checks the values of the keys in `leave`. Without `strict` the mapping may have other
    keys.
    """
    found, hints = [], _hints(kind)
    strict = strict and bool(kind.__struct_config__.forbid_unknown_fields)
    for key, value in raw.items():
        if key not in hints:
            if strict:
                found.append((str(key), f"unknown key.{nearest(str(key), hints)}"))
        elif key not in leave:
            try:
                msgspec.convert(value, hints[key])
            except msgspec.ValidationError as error:
                found.append((str(key), _describe(error)))
    return found + [(name, "is missing") for name in _list_needed(kind) if name not in raw]


@lru_cache
def _list_needed(kind: type[Struct]) -> tuple[str, ...]:
    return tuple(field.name for field in msgspec.structs.fields(kind) if field.required)


@lru_cache
def _hints(kind: type[Struct]) -> dict[str, Any]:
    return typing.get_type_hints(kind, include_extras=True)


_WORDS = {
    "str": "a text",
    "object": "a mapping",
    "array": "a list",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "null": "nothing",
}


def _describe(error: msgspec.ValidationError) -> str:
    """Return msgspec's message in the words of YAML."""
    what, _, where = str(error).partition(" - at `$")
    kinds = "|".join(_WORDS)
    what = re.sub(
        rf"`((?:{kinds})(?: \| (?:{kinds}))*)`",
        lambda match: " or ".join(_WORDS[kind] for kind in match[1].split(" | ")),
        what.replace("` of length >= 1", "` that is not empty").replace("` >= 1", "`, 1 or more"),
    )
    what = what.replace("Object contains unknown field", "unknown key").replace(
        "Object missing required field", "lacks"
    )
    what = what.replace("Invalid enum value", "unknown word")
    what = what[0].lower() + what[1:]
    return f"{where.rstrip('`').lstrip('.')}: {what}" if where else what


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of a case file, for editors.

    A top-level list, or a mapping with a key of a task, is a task. Prompts share any other mapping.
    """
    (module, case), components = msgspec.json.schema_components(
        [ModuleForm, Case], ref_template="#/$defs/{name}"
    )
    marks = [key for key in keys(ModuleForm) if key not in ("description", "group")]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "serve-eval data cases",
        "type": "object",
        "properties": {
            RESOURCES: {
                "type": "object",
                "description": "Shared values that prompts address as ${name}.",
            }
        },
        "additionalProperties": {
            "anyOf": [
                {"type": "array", "items": case},
                {
                    "type": "object",
                    "if": {"anyOf": [{"required": [key]} for key in marks]},
                    "then": module,
                },
            ]
        },
        "$defs": components,
    }


def scalar_paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the plain values of an input that may be part of a prompt."""
    items = (
        value.items()
        if isinstance(value, Mapping)
        else enumerate(value)
        if isinstance(value, list)
        else None
    )
    if items is None:
        yield path
        return
    for key, inner in items:
        if path or key not in ("tools", "tool_choice"):
            yield from scalar_paths(inner, (*path, key))


def has_cases(shared: Mapping[str, Any]) -> bool:
    """Return True if a mapping contains a list of cases, as in a task whose `cases` is misspelt."""
    return any(
        isinstance(one, Mapping) and "case" in one and "input" in one
        for value in shared.values()
        if isinstance(value, list)
        for one in value
    )


def case_problems(content: Any, *, strict: bool) -> Iterable[tuple[tuple[str, ...], str]]:
    """Yield the problems of a case's form as (keys, message).

    Without `strict` it may have other keys, as BioChatter's cases do.
    """
    if not isinstance(content, Mapping):
        yield (), "expected a mapping with case, input and expected"
        return
    for key, message in problems(dict(content), Case, leave=("input", "sampling"), strict=strict):
        yield (key,), message
    for key, kind in (("input", Input), ("sampling", OwnSampling)):
        if key not in content:
            continue
        if not isinstance(content[key], Mapping):
            yield (
                (key,),
                "expected a mapping" + (" such as {prompt: ...}" if key == "input" else ""),
            )
            continue
        for inner, message in problems(dict(content[key]), kind):
            more = (
                " (the sampling of a task accepts more keys)"
                if key == "sampling" and "unknown" in message
                else ""
            )
            yield (key, inner), message + more


Keys = tuple[Any, ...]


def list_in_prompt(
    content: Mapping[str, Any], written: Mapping[Keys, str], path: Keys
) -> dict[Keys, str]:
    """Return a problem for each value of the input that the prompt would show differently.

    `content` is the case at `path` of a document, and `written` is that of the document.
    """
    found = {}
    for keys, reading, value in _read(content, "input", written, path):
        if value is not None:
            found[keys] = f"{reading}, so the prompt would show it differently: put it in quotes"
    return found


def list_expected(
    content: Mapping[str, Any], written: Mapping[Keys, str], path: Keys
) -> dict[Keys, str]:
    """Return a problem for each expected value that is not written as JSON would write it.

    It matters to a scorer that takes any value: true, 3.1 and null are unambiguous, while
    yes, 3.10 and ~ may be texts.
    """
    found = {}
    for keys, reading, value in _read(content, "expected", written, path):
        if not isinstance(value, float) or math.isfinite(value):
            plain = json.dumps(value)
            found[keys] = f"{reading}: put it in quotes for a text, or write {plain} for that value"
    return found


def _read(
    content: Mapping[str, Any], key: str, written: Mapping[Keys, str], path: Keys
) -> Iterator[tuple[Keys, str, Any]]:
    """Yield the keys of each such value, a sentence on how YAML reads it, and the value read."""
    if key not in content:
        return
    for inner in scalar_paths(content[key]):
        keys = (key, *inner)
        if (text := written.get((*path, *keys))) is not None:
            value, named = (
                functools.reduce(operator.getitem, keys, content),
                ".".join(map(str, keys)),
            )
            yield keys, f"{named}: YAML reads {text or 'no value'} as {_kind(value)}", value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "true or false"
    return "nothing" if value is None else "a number"
