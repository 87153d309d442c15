"""The form of a case file: what its mappings may hold. The checks and the JSON schema for editors
are both made of it.
"""

from __future__ import annotations

import re
import typing
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from serve_eval.plugins.registry import nearest

Scorer = Annotated[
    str | dict[str, dict[str, Any] | None],
    Meta(description="A scorer by name, or its name with options: {words: {ignore_case: true}}."),
]
Plain = str | int | float | bool | None
Whole = Annotated[int, Meta(ge=1)]


class Turn(Struct, forbid_unknown_fields=True):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    content: str
    images: Annotated[list[str] | UnsetType, Meta(description="Image files beside this file.")] = (
        UNSET
    )


class Input(Struct):
    """What is asked. Further keys are values for ${name}; without `axes`, each mapping among them
    is an axis.
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
        Meta(description="System turns before it, in their order. A mapping is an axis."),
    ] = UNSET
    messages: Annotated[
        list[Turn] | UnsetType,
        Meta(description="Earlier turns, and without a prompt also the last one."),
    ] = UNSET
    images: Annotated[
        list[str] | UnsetType, Meta(description="Image files beside this file, before the text.")
    ] = UNSET
    tools: Annotated[
        list[dict[str, Any]] | UnsetType,
        Meta(description="Tools that the model may call, as the API has them."),
    ] = UNSET
    tool_choice: Annotated[
        str | dict[str, Any] | UnsetType,
        Meta(description="Which of them it may call, as the API has it."),
    ] = UNSET


class OwnSampling(Struct, forbid_unknown_fields=True):
    """What a single case may ask otherwise."""

    max_tokens: Whole | UnsetType = UNSET
    stop: list[str] | UnsetType = UNSET


class SamplingForm(Struct, forbid_unknown_fields=True):
    """How the answers of a task are sampled."""

    max_tokens: Annotated[
        Whole | UnsetType, Meta(description="Most tokens of an answer (512).")
    ] = UNSET
    temperature: Annotated[
        float | UnsetType | None, Meta(description="0 is greedy (0); null leaves it out.")
    ] = UNSET
    top_p: float | UnsetType | None = UNSET
    seed: int | UnsetType | None = UNSET
    stop: list[str] | UnsetType = UNSET


class Case(Struct, forbid_unknown_fields=True):
    """One case: a question with what is expected of its answer, or many of them by its axes."""

    case: Annotated[
        str,
        Meta(min_length=1, description="Its name; colons part the fields that tables group by."),
    ]
    input: Input
    expected: Annotated[
        Any,
        Meta(
            description=(
                "The answer, or a mapping; {by: [axis], values: {...}} says it for each key of an"
                " axis."
            )
        ),
    ] = None
    scorer: Scorer | UnsetType = UNSET
    sampling: OwnSampling | UnsetType = UNSET
    axes: Annotated[
        list[str] | UnsetType,
        Meta(description="Names of inputs that are axes; without it, all that are mappings."),
    ] = UNSET
    zip_with: Annotated[
        dict[str, str] | UnsetType,
        Meta(description="Inputs that go with an axis: {format: query}."),
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
    """A task: cases with what is common to them."""

    cases: list[Case]
    description: str | UnsetType = UNSET
    scorer: Scorer | UnsetType = UNSET
    iterations: Annotated[
        Whole | UnsetType, Meta(description="How often each of these cases is asked (1).")
    ] = UNSET
    sampling: SamplingForm | UnsetType = UNSET
    prompt: Annotated[
        str | UnsetType, Meta(description="The prompt of cases without one of their own.")
    ] = UNSET
    system_messages: Annotated[
        list[str] | UnsetType, Meta(description="System turns of cases without any of their own.")
    ] = UNSET
    fields: Annotated[
        list[str] | UnsetType,
        Meta(description="What the fields of the names are called: [kind, domain, language]."),
    ] = UNSET


RESOURCES = "resources"


def keys(kind: type[Struct]) -> tuple[str, ...]:
    """The keys that a mapping of the form may have."""
    return tuple(field.name for field in msgspec.structs.fields(kind))


def problems(
    raw: dict[Any, Any], kind: type[Struct], *, leave: tuple[str, ...] = (), strict: bool = True
) -> list[tuple[str, str]]:
    """What is wrong with a mapping, as (key, message) each; the keys of `leave` are looked at
    elsewhere. Without `strict` it may have others.
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
    """Msgspec's message in the words of YAML."""
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
    """The JSON schema of a case file, for editors: a top-level list is a task, a mapping with a key
    of one too, and any other mapping is shared by the prompts.
    """
    (module, case), components = msgspec.json.schema_components(
        [ModuleForm, Case], ref_template="#/$defs/{name}"
    )
    marks = [key for key in keys(ModuleForm) if key != "description"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "serve-eval cases",
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
