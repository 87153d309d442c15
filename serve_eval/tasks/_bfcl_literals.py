"""Read values that a call writes as Java or JavaScript, as BFCL reads them, and write such values.

In these languages every argument is a text. A text that is no literal of its declared type stays a
text, which is right if the answer is the name of a variable.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Language = Literal["python", "java", "javascript"]

JAVA: Mapping[str, type] = {
    **dict.fromkeys(("byte", "short", "integer", "long"), int),
    **dict.fromkeys(("float", "double"), float),
    "boolean": bool,
    **dict.fromkeys(("char", "String", "any"), str),
    **dict.fromkeys(("Array", "ArrayList"), list),
    "HashMap": dict,
}
JAVASCRIPT: Mapping[str, type] = {
    **dict.fromkeys(("integer", "Bigint"), int),
    "float": float,
    "Boolean": bool,
    **dict.fromkeys(("String", "any"), str),
    "array": list,
    "dict": dict,
}
"""Python's types for those that parameters declare, without some that the checker refuses."""

_WHOLE = r"-?\d+"
_EXPONENT = r"-?\d+(\.\d+)?([eE][+-]?\d+)?"
_LISTED = re.compile(r"new\s+ArrayList<\w*>\(Arrays\.asList\((.+?)\)\)")
_ADDED = re.compile(r"new\s+ArrayList<\w*>\(\)\s*\{\{\s*(.+?)\s*\}\}", re.DOTALL)
_NO_LIST = re.compile(r"new\s+ArrayList<\w*>\(\)")
_ADD = re.compile(r"add\((.+?)\)")
_ARRAY = re.compile(r"new\s+\w+\[\]\s*\{(.*?)\}")
_MAP = re.compile(r"new\s+HashMap<.*?>\s*\(\)\s*\{\s*\{?\s*(.*?)\s*\}?\s*\}", re.DOTALL)
_NO_MAP = re.compile(r"new\s+HashMap<.*?>\s*\(\)")
_PUT = re.compile(r"put\(\"(.*?)\",\s*(.*?)\)")
_ROW = r"\s*\[.*?\]\s*(,\s*\[.*?\]\s*)*"
_TABLE = re.compile(rf"\[{_ROW}\]|\bnew\s+Array\({_ROW}\)")
_ITEMS = re.compile(r"\[(.*?)\]|\bnew\s+Array\((.*?)\)")
_PAIR = re.compile(r"([^:]+):\s*(.*?)(?:,\s*(?=[^,]+:)|$)")


def read_java(text: str, kind: str, items: str = "") -> Any:
    """Return the value of a Java literal, or the text. Raises ValueError for too many digits."""
    if kind == "ArrayList":
        return _read_list(text, items)
    if kind == "Array":
        return _read_array(text, items)
    if kind == "HashMap":
        return _read_map(text)
    if kind == "boolean":
        return text == "true" if text in ("true", "false") else text
    pattern, read = _JAVA_NUMBERS.get(kind, ("(?!)", str))
    return read(text) if re.match(f"^{pattern}$", text) else text


_JAVA_NUMBERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    **dict.fromkeys(("byte", "short", "integer"), (_WHOLE, int)),
    "float": (f"{_EXPONENT}[fF]", lambda text: float(text.strip("fF\n"))),
    "double": (_EXPONENT, float),
    "long": (f"{_WHOLE}[lL]", lambda text: int(text.strip("lL\n"))),
}


def _read_list(text: str, items: str) -> Any:
    if found := _LISTED.search(text):
        return [_read_item(one.strip(), items) for one in found[1].split(",")]
    if found := _ADDED.search(text):
        return [_read_item(one.strip(), items) for one in _ADD.findall(found[1])]
    return [] if _NO_LIST.search(text) else text


def _read_item(text: str, items: str) -> Any:
    if items in ("char", "String"):
        return text[1:-1]
    return read_java(text, items) if items else _read_java_value(text)


def _read_array(text: str, items: str) -> Any:
    found = _ARRAY.search(text)
    if found is None:
        return text
    parts = [one.strip() for one in found[1].split(",") if one.strip()]
    return [read_java(one, items) if items else _read_java_value(one) for one in parts]


def _read_map(text: str) -> Any:
    if found := _MAP.search(text):
        return {key: _read_java_value(value.strip()) for key, value in _PUT.findall(found[1])}
    return {} if _NO_MAP.search(text) else text


def _read_java_value(text: str) -> Any:
    """Return the value of a literal whose type is not declared."""
    if text in ("true", "false"):
        return text == "true"
    if text.startswith('"') and text.endswith('"'):
        return text[1:-1]
    for kind in ("long", "float"):
        if (found := read_java(text, kind)) is not text:
            return found
    return _read_number(text)


def _read_number(text: str) -> Any:
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text


def read_javascript(text: str, kind: str, items: str = "") -> Any:
    """Return the value of a JavaScript literal, or the text. Raises ValueError as `read_java`."""
    if kind == "array":
        return _read_js_array(text.strip(), items)
    if kind == "dict":
        return _read_js_object(text.strip())
    if kind == "String":
        return text[1:-1] if _is_quoted(text) else text
    if kind == "Boolean":
        return text == "true" if text in ("true", "false") else text
    pattern, read = _JS_NUMBERS.get(kind, ("(?!)", str))
    return read(text) if re.match(f"^{pattern}$", text) else text


_JS_NUMBERS: Mapping[str, tuple[str, Callable[[str], Any]]] = {
    "integer": (_WHOLE, int),
    "float": (r"-?\d+(\.\d+)?", float),
    "Bigint": (f"{_WHOLE}n", lambda text: int(text[:-1])),
}


def _is_quoted(text: str) -> bool:
    return any(text.startswith(mark) and text.endswith(mark) for mark in "\"'")


def _read_js_array(text: str, items: str) -> Any:
    try:
        if found := _TABLE.match(text):
            rows = [row.strip() for row in re.findall(r"\[(.*?)\]", found[0])]
            rows[0] = rows[0].removeprefix("[")
            return [[_read_js_value(one) for one in row.split(",")] for row in rows]
        if (found := _ITEMS.match(text)) is None:
            return text
        inside = (found[1] if found[1] is not None else found[2]).strip()
        parts = [one.strip() for one in inside.split(",")] if inside else []
        if not items:
            return [_read_js_value(one) for one in parts]
        return [
            read_javascript(one, items, "String" if one.startswith(("'", '"')) else "")
            for one in parts
        ]
    except ValueError:
        return text


def _read_js_object(text: str) -> Any:
    if text == "{}":
        return {}
    found = re.match(r"\{(.*?)\}", text)
    if found is None:
        return text
    return {
        key.strip().strip("'\""): _read_js_entry(value.strip())
        for key, value in _PAIR.findall(found[1])
    }


def _read_js_entry(text: str) -> Any:
    if text.startswith("[") and text.endswith("]"):
        return _read_js_array(text, "")
    if text.startswith("{") and text.endswith("}"):
        return _read_js_object(text)
    return _read_js_value(text.strip("'\""))


def _read_js_value(text: str) -> Any:
    text = text.strip()
    if text in ("true", "false"):
        return text == "true"
    return text[1:-1] if _is_quoted(text) else _read_number(text)


def write_literal(value: Any, kind: str, items: str, language: Language) -> Any:
    """Return a value of an answer as the text that a call has for it."""
    if language == "python":
        return value
    if isinstance(value, list):
        return _write_list(value, kind, items, language)
    if not isinstance(value, dict):
        return _write_plain(value, kind, language)
    pairs = {key: json.dumps(one, ensure_ascii=False) for key, one in value.items()}
    if language == "javascript":
        return "{" + ", ".join(f'"{key}": {one}' for key, one in pairs.items()) + "}"
    puts = " ".join(f'put("{key}", {one});' for key, one in pairs.items())
    return f"new HashMap<String, Object>() {{{{ {puts} }}}}" if puts else "new HashMap<>()"


def _write_list(values: Sequence[Any], kind: str, items: str, language: Language) -> str:
    """Return a list. Upstream keeps the quotes of an array of Java, so it has none here."""
    quoted = items in ("String", "char") and kind != "Array"
    inside = ", ".join(
        f'"{one}"' if quoted and isinstance(one, str) else _write_plain(one, items, language)
        for one in values
    )
    if language == "javascript":
        return f"[{inside}]"
    if kind == "Array":
        return f"new Object[]{{{inside}}}"
    return f"new ArrayList<>(Arrays.asList({inside}))" if values else "new ArrayList<>()"


def _write_plain(value: Any, kind: str, language: Language) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    suffix = "" if isinstance(value, str) else _SUFFIXES.get((language, kind), "")
    return f"{value}{suffix}"


_SUFFIXES = {("java", "long"): "L", ("java", "float"): "f", ("javascript", "Bigint"): "n"}
