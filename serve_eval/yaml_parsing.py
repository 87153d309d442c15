"""Parse and write YAML with PyYAML, for yaml_source.py, which imports this when it must."""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Mapping
from typing import Any

import yaml

from serve_eval.errors import ServeEvalError
from serve_eval.pace import Pace

_OCTAL = re.compile(r"[-+]?0[0-7_]*[1-7][0-7_]*")
_HALF = re.compile("[\ud800-\udfff]")
_MAPPING, _SEQUENCE, _MERGE, _TEXT, _FLOAT = (
    f"tag:yaml.org,2002:{kind}" for kind in ("map", "seq", "merge", "str", "float")
)
_EXPONENT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)[eE][-+]?[0-9]+")
"""Numbers of JSON and YAML 1.2 that PyYAML, which follows YAML 1.1, reads as text: 1e-07, 1.5e5."""
_ODD = re.compile("[\x85\u2028\u2029\ufeff]")
"""Line ends and marks that libyaml reads differently."""
DEEPEST = 100
"""Maximum nesting, in levels."""
LONGEST = 1000
"""Maximum characters of a number or a date: converting a million digits takes minutes."""
Parsed = tuple[Any, Mapping[tuple[Any, ...], int], Mapping[tuple[Any, ...], str]]
"""A value with the `lines` and `written` of its YamlDocument."""


class _Safe(yaml.SafeLoader):
    """Reads what libyaml refuses, with better error messages."""


class Dumper(yaml.SafeDumper):
    """Writes texts that look like numbers, also in YAML 1.2, in quotes, so that they stay texts."""


_FAST: Any = type("_Fast", (yaml.CSafeLoader,), {}) if hasattr(yaml, "CSafeLoader") else None
"""libyaml's loader, if PyYAML was built with it: many times as fast."""
for _one in (_Safe, Dumper, *([_FAST] if _FAST else [])):
    _one.add_implicit_resolver(
        _FLOAT, re.compile(rf"(?:{_EXPONENT.pattern})$"), list("-+.0123456789")
    )


def parse_text(text: str, name: str, error: type[ServeEvalError], *, text_keys: bool) -> Parsed:
    """Return the content of a text; `name`, `error` and `text_keys` as in `yaml_source.parse`.

    Raises `error`, with the line, also if parsing takes too long.
    """
    pace = Pace(name, text.count("\n") + 1, "lines", error)
    try:
        if _FAST is not None and not _ODD.search(text.removeprefix("\ufeff")):
            try:
                return _Builder(_FAST(text), text_keys, pace).build()
            except _Refusal:
                raise
            except yaml.YAMLError:
                pass
        return _Builder(_Safe(text), text_keys, pace).build()
    except yaml.YAMLError as problem:
        raise error(
            f"{name}:{_line(problem, text)}: {_problem(problem)}", hint=_hint(problem)
        ) from problem
    except RecursionError:
        raise error(f"{name}: nested too deeply", hint="Use fewer levels.") from None
    finally:
        pace.end()


def dump_text(content: Any) -> str:
    """Return content as YAML text that reads as the same content, in its order."""
    text: str = yaml.dump(content, Dumper=Dumper, sort_keys=False)
    return text


class _Refusal(yaml.MarkedYAMLError):
    """YAML allows it, but this reader does not."""


def _refusal(place: Any, problem: str) -> _Refusal:
    return _Refusal(problem=problem, problem_mark=place.start_mark)


class _Builder:
    """Builds plain values from the events of a loader, without intermediate nodes."""

    def __init__(self, loader: Any, text_keys: bool, pace: Pace) -> None:
        self._loader, self._text_keys, self._pace = loader, text_keys, pace
        self._lines: dict[tuple[Any, ...], int] = {}
        self._written: dict[tuple[Any, ...], str] = {}

    def build(self) -> Parsed:
        next_event = self._loader.get_event
        next_event()
        value = None
        if not isinstance(next_event(), yaml.StreamEndEvent):
            value = self._build(next_event(), ())
            next_event()
            if not isinstance(more := next_event(), yaml.StreamEndEvent):
                raise _Refusal(
                    "expected a single document in the stream",
                    None,
                    "but found another",
                    more.start_mark,
                )
        return value, self._lines, self._written

    def _build(self, event: Any, path: tuple[Any, ...]) -> Any:
        _refuse_anchor(event)
        line = event.start_mark.line + 1
        self._pace.at(line)
        self._lines.setdefault(path, line)
        if len(path) > DEEPEST:
            raise RecursionError
        if isinstance(event, yaml.ScalarEvent):
            value = _scalar(self._loader, self._node(event))
            if not isinstance(value, str) and json.dumps(value) != event.value:
                self._written[path] = event.value
            return value
        if (
            isinstance(event, yaml.MappingStartEvent)
            and self._tag(event, yaml.MappingNode) == _MAPPING
        ):
            return self._mapping(path)
        if (
            isinstance(event, yaml.SequenceStartEvent)
            and self._tag(event, yaml.SequenceNode) == _SEQUENCE
        ):
            items: list[Any] = []
            while not isinstance(one := self._loader.get_event(), yaml.SequenceEndEvent):
                items.append(self._build(one, (*path, len(items))))
            return items
        raise _refusal(
            event, f"a plain value was expected, or the tag {event.tag!r} is not supported"
        )

    def _mapping(self, path: tuple[Any, ...]) -> dict[Any, Any]:
        built: dict[Any, Any] = {}
        while not isinstance(event := self._loader.get_event(), yaml.MappingEndEvent):
            node = self._node(event)
            if node.tag == _MERGE:
                raise _refusal(event, "merge keys (<<) are not supported")
            key: Any = node.value if self._text_keys else _scalar(self._loader, node)
            if self._text_keys and _HALF.search(key):
                raise _half(event, key)
            if key in built:
                first = self._lines[(*path, key)]
                raise _refusal(event, f"the key {key!r} is repeated; it is first on line {first}")
            self._lines[(*path, key)] = event.start_mark.line + 1
            built[key] = self._build(self._loader.get_event(), (*path, key))
        return built

    def _node(self, event: Any) -> yaml.ScalarNode:
        _refuse_anchor(event)
        if not isinstance(event, yaml.ScalarEvent):
            tag = event.tag
            raise _refusal(
                event, f"a plain value was expected, or the tag {tag!r} is not supported"
            )
        start: Any = event.start_mark  # libyaml's mark has another type
        return yaml.ScalarNode(self._tag(event, yaml.ScalarNode), event.value, start)

    def _tag(self, event: Any, kind: type[yaml.Node]) -> str:
        if event.tag is not None and event.tag != "!":
            return str(event.tag)
        return str(self._loader.resolve(kind, getattr(event, "value", None), event.implicit))


def _refuse_anchor(event: Any) -> None:
    if getattr(event, "anchor", None) is not None:
        raise _refusal(event, "anchors (&name) and aliases (*name) are not supported")


def _half(place: Any, text: str) -> _Refusal:
    return _refusal(place, f"{text!r} holds half of a surrogate pair, which is not a character")


def _scalar(loader: Any, node: yaml.ScalarNode) -> str | int | float | bool | None:
    if node.tag == _TEXT:
        text = str(node.value)
        if _HALF.search(text):
            raise _half(node, text)
        return text
    if len(node.value) > LONGEST:
        raise _refusal(
            node,
            f"{node.value[:50]!r}... is too long for a number or a date: put it in quotes",
        )
    try:
        value = loader.construct_object(node)
    except (ValueError, LookupError, AttributeError, TypeError) as problem:
        # PyYAML's constructors leak these.
        raise _refusal(node, f"{node.value[:50]!r} is not a valid value") from problem
    if isinstance(value, datetime.date):
        return str(node.value)
    if isinstance(value, int | float) and (surprise := _explain_surprise(node.value)):
        raise _refusal(node, f"{surprise}, and YAML reads {node.value} as {value}")
    if value is None or isinstance(value, str | int | float):
        return value
    raise _refusal(node, f"the tag {node.tag!r} is not supported")


def _explain_surprise(written: str) -> str:
    """Return why a number is not the one most readers expect; empty if it is."""
    if ":" in written:
        return "digits with a colon are a number in base 60"
    if _EXPONENT.fullmatch(written) and math.isinf(float(written)):
        return "it is too large for a number"
    return "a number that begins with 0 is octal" if _OCTAL.fullmatch(written) else ""


def _line(problem: yaml.YAMLError, text: str) -> int:
    if isinstance(problem, yaml.MarkedYAMLError):
        mark = problem.problem_mark or problem.context_mark
        return 1 if mark is None else mark.line + 1
    return text.count("\n", 0, getattr(problem, "position", 0)) + 1


def _problem(problem: yaml.YAMLError) -> str:
    if not isinstance(problem, yaml.MarkedYAMLError):
        return "a control character is not allowed"
    told = ", ".join(part for part in (problem.context, problem.problem) if part)
    if "'\\t'" in told:
        return "a tab where YAML wants spaces"
    return told.replace("'<stream end>'", "the end of the file") or "not valid YAML"


def _hint(problem: yaml.YAMLError) -> str:
    text = _problem(problem)
    if "a tab" in text:
        return "Replace the tabs at the beginning of lines with spaces."
    if "anchors" in text or "merge keys" in text:
        return "Write the values out; quote a text that starts with '&' or '*'."
    if "repeated" in text:
        return "Remove or rename one of the two."
    if "YAML reads" in text:
        return "For a text, put it in quotes; for a number, leave out the colon or the leading 0."
    if "tag" in text:
        return "Use plain values only; quote a text that starts with '!'."
    return "Check indentation, colons and quotes on this line and the one before."
