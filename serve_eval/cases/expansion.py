"""Expand a case to the product over its axes, and identify and group the results.

An axis is a value of `input` with a key for each variant. A case with `axes` has only those, in
that order. Its `zip_with` names inputs or parts that vary with an axis and are not axes. An
expectation that depends on axes is `{by: [axis, ...], values: {key: ...}}`. `join: {prompt: " "}`
joins the parts of a mapping to one text; a part that is a mapping itself is an axis named
`prompt.PART`.

A case without `axes` follows BioChatter's rule: each mapping is an axis, except `format`, which
varies with `query`. With an axis `caption`, `expected.answer` is looked up by caption and query.

The key `group` of a task names one of its `fields`, or an input whose value cases share, or else is
a regular expression for the names of the cases. That of a case is the name of its group.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.protocol.sampling_fields import canonical
from serve_eval.schema import Conversation, Message, Override, SamplingParams
from serve_eval.schema.media import put_checksums

MOST_CASES = 100_000
"""Maximum number of cases that one case expands to."""
FORMAT, QUERY, CAPTION = "format", "query", "caption"
_OF_THE_API = (
    "messages",
    "turns",
    "results",
    "images",
    "audio",
    "video",
    "tools",
    "tool_choice",
)
"""Inputs in the form of the API. Their mappings and lists are never axes."""


class ExpansionError(Exception):
    """A case that cannot be expanded. `key` is the position of the reason in the case."""

    def __init__(self, message: str, *key: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True)
class Expanded:
    """A case without axes.

    `content` is the mapping of the case with the chosen values and joined parts. `chosen` has the
    chosen key of each axis.
    """

    name: str
    content: dict[str, Any]
    chosen: Mapping[str, str]


def axes_of(case: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the axes of a case with their variants, in order. Raises ExpansionError."""
    values = _inputs(case)
    if "axes" not in case:
        none = (FORMAT, *_OF_THE_API, *case.get("zip_with", ()))
        found = {
            key: value
            for key, value in values.items()
            if isinstance(value, Mapping) and key not in none
        }
    else:
        found = {}
        for name in case["axes"]:
            if name in _OF_THE_API:
                raise ExpansionError(
                    f"{name!r} cannot be an axis: it is in the form of the API", "axes"
                )
            value = values.get(name)
            if isinstance(value, list):
                value = _by_name(name, value)
            if not isinstance(value, Mapping):
                raise ExpansionError(
                    f"{name!r} is not an axis: input.{name} must be a mapping or a list", "axes"
                )
            found[name] = value
    for name, variants in found.items():
        if not variants:
            raise ExpansionError("an axis without a variant", "input", name)
        odd = next((key for key in variants if not isinstance(key, str)), None)
        if odd is not None:
            raise ExpansionError(
                f"the key {odd!r} of an axis is not a text: put it in quotes", "input", name
            )
    return {name: dict(variants) for name, variants in found.items()}


def _inputs(case: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the input by name. The parts of a joined value replace it."""
    joined, found = case.get("join", {}), dict[str, Any]()
    for name in joined:
        if name in _OF_THE_API:
            raise ExpansionError(
                f"{name!r} cannot be joined: it is in the form of the API", "join", name
            )
        parts = case["input"].get(name)
        if not isinstance(parts, Mapping) or not parts:
            raise ExpansionError(
                f"input.{name} must be a mapping of the parts to join", "join", name
            )
    for name, value in case["input"].items():
        for key, inner in _parts(name, value).items() if name in joined else [(name, value)]:
            if key in found or (key != name and key in case["input"]):
                raise ExpansionError(f"{key!r} already exists as another input", "input", name)
            found[key] = inner
    return found


def _parts(name: str, value: Mapping[str, Any]) -> dict[str, Any]:
    return {f"{name}.{part}": inner for part, inner in value.items()}


def _join(name: str, parts: Mapping[str, Any], taken: Mapping[str, Any], separator: str) -> str:
    """Join the parts, plain or `taken` from an axis, to one stripped text."""
    chosen = {part: taken.get(part, value) for part, value in parts.items()}
    for part, value in chosen.items():
        if not isinstance(value, str | int | float) or isinstance(value, bool):
            which = f"a variant of {part!r}" if part in taken else repr(part)
            raise ExpansionError(f"{which} is {_unlike_text(value, part in taken)}", "input", name)
    return separator.join(map(str, chosen.values())).strip()


def _unlike_text(value: Any, variant: bool) -> str:
    """Describe a value that is not a text."""
    if isinstance(value, Mapping):
        return "a mapping, but must be a text" if variant else "a mapping that `axes` leaves out"
    return (
        "a list, but must be a text" if isinstance(value, list) else "not a text: put it in quotes"
    )


def _by_name(axis: str, values: list[Any]) -> dict[str, Any]:
    """Return the variants of an axis that is a list. Each has its own text as its name."""
    found: dict[str, Any] = {}
    for one in values:
        if one is None or isinstance(one, bool):
            raise ExpansionError(
                f"YAML reads {one!r}, which is not a text: put it in quotes", "input", axis
            )
        if str(one) in found:
            raise ExpansionError(f"{str(one)!r} occurs twice", "input", axis)
        found[str(one)] = one
    return found


def count(case: Mapping[str, Any]) -> int:
    """Return the number of cases that `expand` yields. Raises ExpansionError."""
    return math.prod(len(variants) for variants in axes_of(case).values())


def expand(case: Mapping[str, Any]) -> Iterator[Expanded]:
    """Yield the cases of a case: itself if it has no axis. Raises ExpansionError."""
    axes, explicit = axes_of(case), "axes" in case or "zip_with" in case
    zipped, inputs = dict(case.get("zip_with", {})), _inputs(case)
    if not explicit and QUERY in axes and isinstance(case["input"].get(FORMAT), Mapping):
        zipped[FORMAT] = QUERY
    if (number := count(case)) > MOST_CASES:
        raise ExpansionError(
            f"{number:,} cases, and the limit is {MOST_CASES:,}: use fewer variants"
        )
    for name, axis in zipped.items():
        _check_zip(inputs, name, axis, axes)
    for keys in itertools.product(*axes.values()):
        chosen = dict(zip(axes, keys, strict=True))
        values = dict(case["input"])
        taken = {axis: axes[axis][key] for axis, key in chosen.items()}
        taken |= {name: inputs[name][chosen[axis]] for name, axis in zipped.items()}
        values |= {name: value for name, value in taken.items() if name in values}
        for name, separator in case.get("join", {}).items():
            values[name] = _join(name, _parts(name, case["input"][name]), taken, separator)
        content = {**case, "case": ":".join([case["case"], *keys]), "input": values}
        content.pop("join", None)
        if "expected" in case:
            expected = case["expected"]
            if not explicit and CAPTION in axes:
                expected = _by_caption(expected, chosen)
            content["expected"] = _select_expected(expected, chosen)
        yield Expanded(content["case"], content, chosen)


def _check_zip(
    inputs: Mapping[str, Any], name: str, axis: str, axes: Mapping[str, Mapping[str, Any]]
) -> None:
    if axis not in axes:
        raise ExpansionError(
            f"{axis!r} is not an axis of this case: {', '.join(axes) or 'it has none'}",
            "zip_with",
            name,
        )
    if name in axes:
        raise ExpansionError(f"{name!r} is an axis itself", "zip_with", name)
    values = inputs.get(name)
    missing = [key for key in axes[axis] if not isinstance(values, Mapping) or key not in values]
    if missing:
        raise ExpansionError(
            f"varies with the axis {axis!r} but has no value for {', '.join(missing[:3])}",
            "input",
            name,
        )


def _by_caption(expected: Any, chosen: Mapping[str, str]) -> Any:
    """Return the expectation with its answer looked up by caption, then by query."""
    if not isinstance(expected, Mapping) or not isinstance(expected.get("answer"), Mapping):
        return expected
    by = [axis for axis in (CAPTION, QUERY) if axis in chosen]
    return {**expected, "answer": _look_up(expected["answer"], by, chosen, ("expected", "answer"))}


def _select_expected(expected: Any, chosen: Mapping[str, str]) -> Any:
    """Return the expectation, or the fields of one, for the chosen keys."""
    if _is_address(expected):
        return _look_up(expected["values"], _names(expected["by"]), chosen, ("expected",))
    if isinstance(expected, Mapping):
        return {
            key: (
                _look_up(value["values"], _names(value["by"]), chosen, ("expected", key))
                if _is_address(value)
                else value
            )
            for key, value in expected.items()
        }
    return expected


def _is_address(value: Any) -> bool:
    return isinstance(value, Mapping) and set(value) == {"by", "values"}


def _names(by: Any) -> list[str]:
    return [by] if isinstance(by, str) else list(by) if isinstance(by, list) else [str(by)]


def _look_up(values: Any, by: list[str], chosen: Mapping[str, str], place: tuple[str, ...]) -> Any:
    for axis in by:
        if axis not in chosen:
            raise ExpansionError(
                f"by {axis!r}, which is not an axis of this case:"
                f" {', '.join(chosen) or 'it has none'}",
                *place,
            )
        if not isinstance(values, Mapping) or chosen[axis] not in values:
            raise ExpansionError(f"no expectation for {axis} {chosen[axis]!r}", *place)
        values = values[chosen[axis]]
    return values


KEY_HEX = 12


def compat_md5(case: Mapping[str, Any]) -> str:
    """Return BioChatter's key of an expanded case.

    It is the MD5 of the JSON that Python writes, with keys in the order of the file. It identifies
    rows of old results and has no security purpose.
    """
    return hashlib.md5(json.dumps(case).encode(), usedforsecurity=False).hexdigest()


def canonical_sha256(value: object) -> str:
    """Return the hex SHA-256 of a value as JSON with sorted keys."""
    return hashlib.sha256(msgspec.json.encode(value, order="sorted")).hexdigest()


def question_sha256(
    turns: Sequence[Message],
    sampling: SamplingParams,
    override: Override | None,
    conversation: Conversation | None = None,
) -> str:
    """Return the hex SHA-256 of a question: turns with media, sampling options and tools."""
    asked = list(map(put_checksums, turns))
    talk = {} if conversation is None else {"conversation": conversation}
    return canonical_sha256({"turns": asked, "sampling": sampling, "override": override, **talk})


def sample_id(name: str, question: str) -> str:
    """Return the id of a sample: the name of its case, and the start of its question's hash.

    A changed question is therefore another sample. The letter q distinguishes the hash from the
    number of a repeat.
    """
    return f"{name}#q{question[:KEY_HEX]}"


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.]*")
"""A key `group` of this form is a field or an input; any other one is a regular expression."""
_DIGITS = 12


class CaseGroups:
    """Returns the group of each expanded case of a task.

    `by` is the key `group` of the task. `where` is its place, for messages.
    """

    def __init__(self, by: str | None, fields: Sequence[str], where: str) -> None:
        self._by, self._fields, self._where = by, list(fields), where
        self._inputs: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._found = False
        if by is not None and by not in self._fields and not _NAME.fullmatch(by):
            try:
                self._pattern = re.compile(by)
            except re.error as error:
                raise PlanError(
                    f"{where}: {by!r} is not a regular expression: {error}",
                    hint="Name one of `fields` or an input, or write a valid expression.",
                ) from error

    def find(self, one: Expanded, values: Mapping[str, Any]) -> str:
        """Return the group of a case with these inputs; empty if it is on its own."""
        if (own := one.content.get("group")) is not None:
            return str(own)
        if self._by is None:
            return ""
        self._inputs |= {*values, *one.chosen}
        found = self._find_common(self._by, one, values)
        self._found |= bool(found)
        return found

    def check(self) -> None:
        """Raise PlanError if the key of the task gave no case a group."""
        if self._by is None or self._found or not self._inputs:
            return
        if self._pattern is not None:
            raise PlanError(f"{self._where}: no name of a case matches {self._by!r}")
        known = [*self._fields, *sorted(self._inputs)]
        raise PlanError(
            f"{self._where}: {self._by!r} is neither one of `fields` nor an input of a case."
            f"{nearest(self._by, known)}",
            hint="Name one of them, or write a regular expression for the names of the cases.",
        )

    def _find_common(self, by: str, one: Expanded, values: Mapping[str, Any]) -> str:
        if by in self._fields:
            parts, place = one.name.split(":"), self._fields.index(by)
            return parts[place] if place < len(parts) else ""
        if self._pattern is not None:
            match = self._pattern.search(one.name)
            return "" if match is None else match[min(1, self._pattern.groups)] or ""
        shared = values.get(by, one.chosen.get(by))
        if shared is None:
            return ""
        digest = hashlib.sha256(canonical(shared).encode()).hexdigest()
        return f"{by} {digest[:_DIGITS]}"
