"""Edit one entry of a YAML file that people edit too, without changing any other byte.

The files map names to lists of entries. PyYAML reports where the nodes of a text begin and end. The
text between those places is replaced or extended, and the file as a whole is never rewritten. After
an edit the text is parsed again and must hold the intended content, so a layout that this module
does not understand is refused and never damaged.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from serve_eval import yaml_source
from serve_eval.errors import ServeEvalError
from serve_eval.yaml_parsing import Dumper

_HINT = (
    "Write each name on a separate line, and each entry below it, on lines that start with '- '."
)


class _Layout(Dumper):
    """A dumper that indents lists below their key, and writes each text on one line."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        super().increase_indent(flow, False)

    def represent_text(self, text: str) -> yaml.ScalarNode:
        return self.represent_scalar(
            "tag:yaml.org,2002:str", text, style=None if text.isprintable() else '"'
        )


_Layout.add_representer(str, _Layout.represent_text)


def append_entry(
    text: str, name: str, key: str, entry: Mapping[str, Any], error: type[ServeEvalError]
) -> str:
    """Return the text with one more entry at the end of the list of `key`.

    The key is added if it is missing. `name` stands for the file in messages. Raises `error`, with
    the line, for an invalid text and for a style that cannot be edited.
    """
    content = _content(text, name, error)
    root: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    if key in content:
        edited = _with_item(
            text, _list_of(root, name, key, error), root.start_mark.column + 2, entry
        )
    elif content:
        _refuse_flow(root, name, key, error)
        edited = _with_key(text, root, {key: [entry]})
    else:
        start, end = (
            (len(text),) * 2 if root is None else (root.start_mark.index, root.end_mark.index)
        )
        edited = _insert(text[:start], {key: [entry]}, 0, text[end:].lstrip(" "))
    return _verify(edited, name, {**content, key: [*content.get(key, ()), entry]}, error)


def replace_entry(
    text: str,
    name: str,
    key: str,
    index: int,
    entry: Mapping[str, Any],
    error: type[ServeEvalError],
) -> str:
    """Return the text with the entry at `index` of the list of `key` replaced.

    Comments between the lines of the old entry are lost. Raises as `append_entry` does.
    """
    content = _content(text, name, error)
    old = _list_of(yaml.compose(text, Loader=yaml.SafeLoader), name, key, error).value[index]
    start = old.start_mark.index
    # A text block ends after the empty lines that follow it.
    end = start + len(text[start : _end(old)].rstrip())
    new = _line_break(text).join(_lines(entry, old.start_mark.column)).lstrip(" ")
    edited = text[:start] + new + text[end:]
    entries = [entry if i == index else one for i, one in enumerate(content[key])]
    return _verify(edited, name, {**content, key: entries}, error)


def _content(text: str, name: str, error: type[ServeEvalError]) -> dict[str, Any]:
    """Return the mapping of the text; empty for an empty text."""
    content = yaml_source.parse(text, name, error).value
    if content is not None and not isinstance(content, dict):
        raise error(f"{name}:1: must map names to lists", hint=_HINT)
    return content or {}


def _list_of(root: Any, name: str, key: str, error: type[ServeEvalError]) -> Any:
    """Return the list of a key. Raises `error` if it is within brackets or is not a list."""
    _refuse_flow(root, name, key, error)
    found = next(value for of, value in root.value if of.value == key)
    if not isinstance(found, yaml.SequenceNode):
        raise error(
            f"{name}:{found.start_mark.line + 1}: {key} must be a list of entries", hint=_HINT
        )
    if found.value:
        _refuse_flow(found, name, key, error)
    return found


def _refuse_flow(node: Any, name: str, key: str, error: type[ServeEvalError]) -> None:
    if node.flow_style:
        raise error(
            f"{name}:{node.start_mark.line + 1}: an entry of {key} cannot be added or replaced"
            " within brackets",
            hint=_HINT,
        )


def _with_key(text: str, root: Any, data: Mapping[str, Any]) -> str:
    """Add a key at the end of the document, after its comments and before a line of three dots."""
    start = _line_end(text, _end(root))
    while start < len(text) and not text.startswith("...", start):
        start = _line_end(text, start + 1)
    return _insert(text[:start], data, root.start_mark.column, text[start:])


def _with_item(text: str, items: Any, below: int, entry: Mapping[str, Any]) -> str:
    """Add an item to a list, after the comments with the indentation of its items.

    The item of an empty list goes to the column `below`.
    """
    if not items.value:  # []
        start, end = items.start_mark.index, items.end_mark.index
        return _insert(text[:start].rstrip(" "), [entry], below, text[end:])
    column: int = items.start_mark.column
    start = _line_end(text, _end(items))
    while column and re.match(f" {{{column},}}#", text[start:]):
        start = _line_end(text, start + 1)
    return _insert(text[:start], [entry], column, text[start:])


def _insert(before: str, data: Any, column: int, after: str) -> str:
    """Put lines between two parts of a text; the first part may end within a line."""
    break_ = _line_break(before + after)
    gap = "" if not before.strip("\ufeff") or before.endswith("\n") else break_
    end = "" if after[:1] in ("\n", "\r") else break_
    return before + gap + break_.join(_lines(data, column)) + end + after


def _lines(data: Any, column: int) -> list[str]:
    dumped = yaml.dump(data, Dumper=_Layout, sort_keys=False, allow_unicode=True, width=math.inf)
    return [" " * column + line for line in dumped.removesuffix("\n").split("\n")]


def _line_break(text: str) -> str:
    first = text.find("\n")
    return "\r\n" if first > 0 and text[first - 1] == "\r" else "\n"


def _line_end(text: str, index: int) -> int:
    """Return the start of the next line, or `index` if a line has just ended."""
    if index and text[index - 1] == "\n":
        return index
    return text.find("\n", index) + 1 or len(text)


def _end(node: Any) -> int:
    """Return the end of the last value within a node.

    The end mark of a block lies after the comments that follow it.
    """
    if isinstance(node, yaml.ScalarNode) or node.flow_style or not node.value:
        return int(node.end_mark.index)
    last = node.value[-1]
    return _end(last[1] if isinstance(node, yaml.MappingNode) else last)


def _verify(text: str, name: str, meant: dict[str, Any], error: type[ServeEvalError]) -> str:
    """Return the text if it holds exactly the intended content, in this order."""
    problem = ""
    try:
        found = yaml_source.parse(text, name, error).value
    except error as one:
        problem = f" ({one})"
    else:
        if json.dumps(found) == json.dumps(meant):
            return text
    raise error(
        f"{name}: its layout cannot be edited without changing other entries{problem}",
        hint=f"Nothing was written. {_HINT}",
    )
