"""BFCL v4: the leaderboard's function calls of one turn, checked by name and arguments.

Berkeley Function Calling Leaderboard, gorilla (Apache-2.0). Paper: Patil et al. 2025, "The Berkeley
Function Calling Leaderboard (BFCL)". A sample offers functions, such as
calculate_triangle_area(base, height, unit), and asks "Find the area of a triangle with a base of 10
units and height of 5 units." It is right if the calls are the expected ones, in any order, each
argument with one of its allowed values. In the categories of irrelevance, no call is right. The
value is the mean of the parts of the leaderboard's score that have one turn: non-live, live and
irrelevance.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.source import Source
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins import registry
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Need,
    Override,
    Sample,
    SamplingParams,
    Task,
)
from serve_eval.tasks import _bfcl_checking, _bfcl_rows
from serve_eval.tasks._bfcl_checking import Expectation, MadeCall, check_calls, underscore
from serve_eval.tasks._bfcl_literals import Language
from serve_eval.tasks._bfcl_rows import (
    CATEGORIES,
    CATEGORY,
    LEADERBOARD,
    WEIGHT,
    break_down,
    interleave,
    of_names,
    weigh,
)
from serve_eval.tasks._bfcl_scoring import Mode, answer_rightly, name_failure, score_calls
from serve_eval.tasks._samples import RandomSeed, name_document, shuffle

COMMIT = "6ea57973c7a6097fd7c5915698c54c17c5b1b6c8"
SOURCE = Source(
    name="BFCL v4",
    folders=("bfcl_eval/data", "bfcl"),
    homepage="https://github.com/ShishirPatil/gorilla/tree/main/berkeley-function-call-leaderboard",
    licence="Apache-2.0",
    rows="3641 with one turn, 13 categories",
    revision=COMMIT,
    urls={
        name: (
            f"https://raw.githubusercontent.com/ShishirPatil/gorilla/{COMMIT}/"
            f"berkeley-function-call-leaderboard/bfcl_eval/data/{name}"
        )
        for name in _bfcl_rows.SHA256
    },
    sha256=_bfcl_rows.SHA256,
    note="the files are also in PyPI's bfcl-eval 2026.3.23, below bfcl_eval/data",
)
PROMPT_FROM = "gorilla (https://github.com/ShishirPatil/gorilla, Apache-2.0)"


def task(
    *,
    mode: Annotated[
        Mode,
        Setting(
            "With fc, the request offers tools and the server parses the calls. With prompt, a"
            " system prompt lists the functions, and the calls are read from the text."
        ),
    ] = "fc",
    categories: Annotated[
        list[str] | None,
        Setting("Some of the 13 categories. Not set: all, in mode prompt those in Python."),
    ] = None,
    num_samples: Annotated[
        int | None,
        Setting("Number of samples, from all categories by their size. Not set: all."),
    ] = None,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `mode` is one of the two of the leaderboard. Raises PlanError for unknown categories and for
    numbers out of range.
    """
    chosen = _choose(categories, mode)
    total = sum(CATEGORIES[name].rows for name in chosen)
    count = total if num_samples is None else num_samples
    if not chosen or count < 1:
        raise PlanError("bfcl: num_samples must be 1 or more, categories must not be empty")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        marks = [_bfcl_rows.name_file(name) for name in chosen]
        folder = local.find_folder(SOURCE, roots, marks)
        read = {name: _bfcl_rows.read_category(SOURCE, folder, name) for name in chosen}
        found = sum(len(one.rows) for one in read.values())
        told = f"BFCL v4 is incomplete: {folder} has {found} rows of these categories"
        local.check_rows(roots, found, min(wanted, total), told, SOURCE)
        samples = _build_samples(read, mode, wanted, random_seed)
        return Dataset(
            samples=samples,
            files=tuple(file.source for one in read.values() for file in one.files),
            total=found,
            deviation=(
                None
                if all(len(read[name].rows) == CATEGORIES[name].rows for name in chosen)
                else f"{found} rows, where these categories have {total}"
            ),
            notes=_note_hopeless(samples),
        )

    return Task(
        name="bfcl",
        version=1,
        datasets=("bfcl",),
        reference_file="bfcl" if mode == "fc" else "bfcl_prompt",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=count),
        sampling=SamplingParams(max_tokens=4096),
        chat=True,
        protocol={
            "mode": mode,
            "categories": None if categories is None else chosen,
            "random_seed": random_seed,
        },
        load=load,
        score=lambda sample, response: score_calls(sample, response, mode),
        answers=lambda sample: answer_rightly(sample, mode),
        aggregation=LEADERBOARD,
        breakdown=break_down,
        failure_mode=name_failure,
        requires=frozenset({Need.TOOLS}) if mode == "fc" else frozenset(),
        judges_empty=True,
        scoring="apart",  # The patterns of literals and the parser may take long on some texts.
    )


def _choose(names: list[str] | None, mode: Mode) -> list[str]:
    known = [
        name
        for name, category in CATEGORIES.items()
        if mode == "fc" or category.language == "python"
    ]
    problems = [
        f"bfcl.categories: unknown category {name!r}.{registry.nearest(name, CATEGORIES)}"
        for name in names or ()
        if name not in CATEGORIES
    ] + [
        f"bfcl.categories: {name} is for mode fc: the mode prompt reads calls as Python"
        for name in names or ()
        if name in CATEGORIES and name not in known
    ]
    if problems:
        raise PlanError(problems)
    return known if names is None else of_names(names)


def _build_samples(
    read: Mapping[str, _bfcl_rows.ReadCategory], mode: Mode, wanted: int, seed: int
) -> list[Sample]:
    orders = {name: shuffle(len(one.rows), seed) for name, one in read.items()}
    asked = interleave({name: len(one.rows) for name, one in read.items()})[:wanted]
    weights = weigh([name for name, _ in asked])
    return [
        _build_sample(read[name], orders[name][place], name, mode, repr(weights[name]))
        for name, place in asked
    ]


def _build_sample(
    read: _bfcl_rows.ReadCategory, place: int, category: str, mode: Mode, weight: str
) -> Sample:
    row = read.rows[place]
    turns = [Message(role=turn.role, content=turn.content) for turn in row.question[0]]
    wanted = CATEGORIES[category].wanted
    extra: dict[str, Any] = {}
    try:
        calls = tuple(
            _bfcl_checking.expect_call(row.function, answer, category, dots=mode == "prompt")
            for answer in read.answers.get(row.id, ())
        )
        if mode == "prompt":
            turns = _describe(turns, describe(row.function))
        elif row.function:
            tools = [offer(one, CATEGORIES[category].language) for one in row.function]
            extra = {"tools": tools, "tool_choice": "auto"}
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DatasetError(
            f"{read.files[0].path}: {row.id}: the functions or the answer lack {error}",
            hint=local.advice(SOURCE),
        ) from error
    return Sample(
        id=row.id,
        prompt=tuple(turns),
        target=msgspec.json.encode(Expectation(wanted, calls)).decode(),
        metadata={CATEGORY: category, WEIGHT: weight},
        override=Override(extra=extra) if extra else None,
        group=name_document(json.dumps(row.function)),
    )


def _note_hopeless(samples: list[Sample]) -> tuple[str, ...]:
    """Name the samples whose own answer breaks the rules, so that every answer is wrong.

    The leaderboard counts them too.
    """
    found = []
    for sample in samples:
        calls = _bfcl_checking.read_expectation(sample).calls
        if check_calls(calls, [MadeCall(call.name, _bfcl_checking.fill(call)) for call in calls]):
            found.append(sample.id)
    if not found:
        return ()
    are = f"{len(found)} sample{'s' if len(found) > 1 else ''}"
    return (f"no answer to {are} can be right, as on the leaderboard: {', '.join(found)}",)


def _describe(turns: list[Message], system: str) -> list[Message]:
    """Return the messages with the system prompt, before the row's own."""
    if turns[0].role == "system":
        return [Message(role="system", content=f"{system}\n\n{turns[0].text}"), *turns[1:]]
    return [Message(role="system", content=system), *turns]


Function = Mapping[str, Any]

HINTS: Mapping[Language, str] = {
    "python": " Note that the provided function is in Python 3 syntax.",
    "java": " Note that the provided function is in Java 8 SDK syntax.",
    "javascript": " Note that the provided function is in JavaScript syntax.",
}
NAMES: Mapping[Language, str] = {"java": "Java", "javascript": "JavaScript"}
FLOAT = " This is a float type value."
_TYPES: Mapping[str, str] = {
    "integer": "integer",
    "number": "number",
    "float": "number",
    "string": "string",
    "boolean": "boolean",
    "bool": "boolean",
    "array": "array",
    "list": "array",
    "dict": "object",
    "object": "object",
    "tuple": "array",
    "any": "string",
    "byte": "integer",
    "short": "integer",
    "long": "integer",
    "double": "number",
    "char": "string",
    "ArrayList": "array",
    "Array": "array",
    "HashMap": "object",
    "Hashtable": "object",
    "Queue": "array",
    "Stack": "array",
    "Any": "string",
    "String": "string",
    "Bigint": "integer",
}
SYSTEM = (
    "You are an expert in composing functions.You are given a question and a set of possible"
    " functions. Based on the question, you will need to make one or more function/tool calls to"
    " achieve the purpose. If none of the functions can be used, point it out. If the given"
    " question lacks the parameters required by the function, also point it out.\n\nYou should only"
    " return the function calls in your response.\n\nIf you decide to invoke any of the"
    " function(s), you MUST put it in the format of [func_name1(params_name1=params_value1,"
    " params_name2=params_value2...), func_name2(params)].  You SHOULD NOT include any other text"
    " in the response.\n\nAt each turn, you should try your best to complete the tasks requested by"
    " the user within the current turn. Continue to output functions to call until you have"
    " fulfilled the user's request to the best of your ability. Once you have no more functions to"
    " call, the system will consider the current turn complete and proceed to the next turn or"
    " task.\n\nHere is a list of functions in json format that you can invoke.\n"
)
"""The default system prompt of the leaderboard's prompt mode, up to the functions."""


def hint(function: Function, language: Language = "python") -> dict[str, Any]:
    """Return a function whose description names its language.

    Every parameter of Java and JavaScript is a text that describes its type.
    """
    found = {**function, "description": function["description"] + HINTS[language]}
    if language == "python":
        return found
    parameters = function["parameters"]
    properties = parameters["properties"].items()
    texts = {name: _describe_text(value, language) for name, value in properties}
    return {**found, "parameters": {**parameters, "properties": texts}}


def _describe_text(schema: Mapping[str, Any], language: Language) -> dict[str, Any]:
    """Return the schema of a parameter whose value is written in a language, as a text."""
    found, kind, name = {**schema, "type": "string"}, schema["type"], NAMES[language]
    if kind == "any":
        more = f" This parameter can be of any type of {name} object in string representation."
    else:
        more = f" This is {name} {kind} type parameter in string representation."
    if kind in (("Array", "ArrayList") if language == "java" else ("array",)):
        items = found.pop("items")["type"]
        more += f" The list elements are of type {items}; they are not in string representation."
    if language == "javascript" and kind == "dict" and "properties" in found:
        entries = json.dumps(found.pop("properties"))
        more += " The dictionary entries have the following schema; they are not in string"
        more += f" representation. {entries}"
    return {**found, "description": schema["description"] + more}


def describe(functions: Sequence[Function]) -> str:
    """Return the system prompt of the prompt mode."""
    return f"{SYSTEM}{json.dumps([hint(one) for one in functions], indent=4)}\n"


def offer(function: Function, language: Language = "python") -> dict[str, Any]:
    """Return a function as a tool of OpenAI's API."""
    found = hint(function, language)
    parameters = {**found["parameters"], "type": "object"}
    parameters["properties"] = _cast_properties(parameters["properties"])
    return {
        "type": "function",
        "function": {**found, "name": underscore(found["name"]), "parameters": parameters},
    }


def _cast_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _cast(value) for name, value in properties.items()}


def _cast(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with JSON Schema's types.

    As upstream, it goes into properties, and into items for two levels.
    """
    found = dict(schema)
    if found.get("type") == "float":
        found["format"] = "float"
        found["description"] = found.get("description", "") + FLOAT
    found["type"] = _TYPES.get(found.get("type", ""), "string")
    if found["type"] not in ("array", "object"):
        return found
    if "properties" in found:
        found["properties"] = _cast_properties(found["properties"])
    elif "items" in found:
        found["items"] = _cast_items(found["items"])
    return found


def _cast_items(schema: Mapping[str, Any]) -> dict[str, Any]:
    found = {**schema, "type": _TYPES.get(schema["type"], "string")}
    if found["type"] == "array" and "items" in found:
        inner = found["items"]
        found["items"] = {**inner, "type": _TYPES.get(inner["type"], "string")}
    elif found["type"] == "object" and "properties" in found:
        found["properties"] = _cast_properties(found["properties"])
    return found
