"""Turn the functions of BFCL into tools of a request, or into a system prompt."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from serve_eval.tasks._bfcl.checking import underscore
from serve_eval.tasks._bfcl.literals import Language

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
