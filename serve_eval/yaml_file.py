"""Reads YAML safely and remembers the line of every key and list item, so that an error can say where it is.

Stricter than YAML: one document, no repeated keys, no anchors, aliases or merge keys (they can make a small file
explode), no tags beyond plain values, lists and mappings.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from serve_eval.errors import ServeEvalError

_OCTAL = re.compile(r"[-+]?0[0-7_]*[1-7][0-7_]*")
_HALF = re.compile("[\ud800-\udfff]")
_MAPPING, _SEQUENCE, _MERGE = (f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "merge"))


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: `name` for messages, `value` as plain Python (None: an empty file), and the lines it came from.
    `written` has, by its path, each number and truth value that JSON would write otherwise: 3.10, 1_000, yes."""

    name: str
    value: Any
    lines: Mapping[tuple[Any, ...], int] = field(default_factory=dict, repr=False)
    written: Mapping[tuple[Any, ...], str] = field(default_factory=dict, repr=False)

    def line(self, *keys: object) -> int:
        """1-based line of the mapping key or list item (by index) at this path, or of its nearest known parent."""
        return next((self.lines[keys[:n]] for n in range(len(keys), -1, -1) if keys[:n] in self.lines), 1)


def read(path: Path, error: type[ServeEvalError], *, text_keys: bool = False) -> Document:
    """The document in a file; `text_keys` as for `parse`. Raises `error`, naming file and line, when it cannot be read,
    decoded or parsed."""
    return parse(read_text(path, error), str(path), error, text_keys=text_keys)


def read_text(path: Path, error: type[ServeEvalError]) -> str:
    """The text of a file. Raises `error`, naming file and line, when it cannot be read or decoded."""
    try:
        raw = path.read_bytes()
    except OSError as problem:
        raise error(f"{path}: cannot be read: {problem.strerror or problem}", hint="Check the path.") from problem
    try:
        return raw.decode()
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        raise error(f"{path}:{line}: not UTF-8 text", hint="Save the file as UTF-8.") from problem


def parse(text: str, name: str, error: type[ServeEvalError], *, text_keys: bool = False) -> Document:
    """The document in a text; `name` stands for the file in messages. With `text_keys` the keys of mappings are the
    texts that they are written as, also 1 and yes. Raises `error`, naming the line."""
    lines: dict[tuple[Any, ...], int] = {}
    try:
        loader = _Loader(text, text_keys=text_keys)
        node = loader.get_single_node()
        value = None if node is None else _build(loader, node, (), lines)
        written = loader.written
    except yaml.YAMLError as problem:
        raise error(f"{name}:{_line(problem, text)}: {_problem(problem)}", hint=_hint(problem)) from problem
    except RecursionError:
        raise error(f"{name}: nested too deeply", hint="Use fewer levels.") from None
    return Document(name, value, lines, written)


class _Loader(yaml.SafeLoader):
    """The safe loader, which knows only plain values, without anchors and aliases."""

    def __init__(self, text: str, *, text_keys: bool) -> None:
        super().__init__(text)
        self.text_keys = text_keys
        self.written: dict[tuple[Any, ...], str] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        if getattr(event, "anchor", None) is not None:
            raise _refusal(event, "anchors (&name) and aliases (*name) are not supported")
        return super().compose_node(parent, index)


def _refusal(place: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=place.start_mark)


def _build(loader: _Loader, node: yaml.Node, path: tuple[Any, ...], lines: dict[tuple[Any, ...], int]) -> Any:
    lines.setdefault(path, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode) and node.tag == _MAPPING:
        return _build_mapping(loader, node, path, lines)
    if isinstance(node, yaml.SequenceNode) and node.tag == _SEQUENCE:
        return [_build(loader, item, (*path, i), lines) for i, item in enumerate(node.value)]
    value = _scalar(loader, node)
    if isinstance(value, int | float) and json.dumps(value) != node.value:
        loader.written[path] = node.value
    return value


def _build_mapping(
    loader: _Loader, node: yaml.MappingNode, path: tuple[Any, ...], lines: dict[tuple[Any, ...], int]
) -> dict[Any, Any]:
    built: dict[Any, Any] = {}
    for key_node, value_node in node.value:
        if key_node.tag == _MERGE:
            raise _refusal(key_node, "merge keys (<<) are not supported")
        key = _key(loader, key_node)
        if key in built:
            raise _refusal(key_node, f"the key {key!r} is repeated; it stands first on line {lines[(*path, key)]}")
        lines[(*path, key)] = key_node.start_mark.line + 1
        built[key] = _build(loader, value_node, (*path, key), lines)
    return built


def _key(loader: _Loader, node: yaml.Node) -> str | int | float | bool | None:
    if loader.text_keys and isinstance(node, yaml.ScalarNode):
        node = yaml.ScalarNode("tag:yaml.org,2002:str", node.value, node.start_mark, node.end_mark)
    return _scalar(loader, node)


def _scalar(loader: _Loader, node: yaml.Node) -> str | int | float | bool | None:
    if not isinstance(node, yaml.ScalarNode):
        raise _refusal(node, f"a plain value was expected, or the tag {node.tag!r} is not supported")
    try:
        value = loader.construct_object(node)
    except (ValueError, LookupError, AttributeError, TypeError) as problem:  # what the constructors let through
        raise _refusal(node, f"{node.value[:50]!r} is not a valid value") from problem
    if isinstance(value, datetime.date):
        return str(node.value)
    if isinstance(value, int | float) and (surprise := _surprising(node.value)):
        raise _refusal(node, f"{surprise}, and YAML reads {node.value} as {value}")
    if isinstance(value, str) and _HALF.search(value):
        raise _refusal(node, f"{value!r} holds half of a surrogate pair, which is no character")
    if value is None or isinstance(value, str | int | float):
        return value
    raise _refusal(node, f"the tag {node.tag!r} is not supported")


def _surprising(written: str) -> str:
    """Why a number is another one than most readers would say; empty where it is not."""
    if ":" in written:
        return "digits with a colon are a number to the base 60"
    return "a number that begins with 0 is octal" if _OCTAL.fullmatch(written) else ""


def _line(problem: yaml.YAMLError, text: str) -> int:
    if isinstance(problem, yaml.MarkedYAMLError):
        mark = problem.problem_mark or problem.context_mark
        return 1 if mark is None else mark.line + 1
    return text.count("\n", 0, getattr(problem, "position", 0)) + 1


def _problem(problem: yaml.YAMLError) -> str:
    if not isinstance(problem, yaml.MarkedYAMLError):
        return "a control character is not allowed"
    return ", ".join(part for part in (problem.context, problem.problem) if part) or "not valid YAML"


def _hint(problem: yaml.YAMLError) -> str:
    text = _problem(problem)
    if "anchors" in text or "merge keys" in text:
        return "Write the values out; quote a text that starts with '&' or '*'."
    if "repeated" in text:
        return "Remove or rename one of the two."
    if "YAML reads" in text:
        return "Put it in quotes to have a text; write a number without the colon, or the 0."
    if "tag" in text:
        return "Use plain values only; quote a text that starts with '!'."
    return "Check indentation, colons and quotes on this line and the one before."
