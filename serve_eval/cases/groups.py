"""Identify cases by keys, and group those that may be right or wrong together.

The key `group` of a task names one of its `fields`, or an input whose value cases share, or else is
a regular expression for the names of the cases. That of a case is the name of its group.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from serve_eval.cases.expansion import Expanded
from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.protocol.fingerprint import canonical
from serve_eval.schema import Message, Override, SamplingParams
from serve_eval.schema.media import put_checksums

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
    turns: Sequence[Message], sampling: SamplingParams, override: Override | None
) -> str:
    """Return the hex SHA-256 of a question: turns with media, sampling options and tools."""
    asked = list(map(put_checksums, turns))
    return canonical_sha256({"turns": asked, "sampling": sampling, "override": override})


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
