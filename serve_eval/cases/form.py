"""The form of a case file: the keys and values of its mappings.

Both the checks and the JSON schema for editors are derived from it.
"""

from __future__ import annotations

import re
import typing
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
