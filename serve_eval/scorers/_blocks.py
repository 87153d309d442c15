"""Find the blocks of code and the JSON in an answer.

Fences are those of CommonMark, three or more backticks or tildes, also in lists and quotations,
behind other text on their line, and never closed. Without one, blocks are what HTML's `code` or
`pre` and tags such as `[PYTHON]` enclose. Each step takes time proportional to the text's length.
"""

from __future__ import annotations

import html
import json
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

_OPENING = re.compile(
    r"(?P<lead>[ \t]*+(?:>[ \t]?)*+(?:(?:[-*+]|\d{1,4}[.)])[ \t]++)*+[ \t]*+)"
    r"(?P<text>[^`~\n]{0,300}?[^\s`~][ \t]+|)(?P<fence>`{3,}+|~{3,}+)[ \t]*+(?P<info>[^`\n]*+)\Z"
)
_INFO_BEHIND_TEXT = re.compile(r"[\w+#.-]{0,20}\s*")
_ONE_LINE = re.compile(r"[ \t>]*+(`{3,}+)(?:(?i:python3?|py)\s)?([^`]+)\1[ \t]*+\Z")
_TAGGED = re.compile(
    r"<(?P<tag>pre|code|python)(?:\s[^<>]{0,200})?>(?P<html>.*?)(?:</(?P=tag)>|\Z)"
    r"|\[(?P<name>PYTHON|CODE)\](?P<plain>.*?)(?:\[/(?P=name)\]|\Z)",
    re.DOTALL | re.IGNORECASE,
)
_INNER_CODE = re.compile(r"\A\s*<code(?:\s[^<>]{0,200})?>|</code>\s*\Z", re.IGNORECASE)
_PYTHON = re.compile(r"\{?\.?(?:i?python[\d.]{0,6}|py3?|pycon|python-repl|sage)(?![\w+#])", re.I)
_MARKDOWN = re.compile(r"(?:markdown|md|mdx)(?!\w)", re.IGNORECASE)
_QUOTED = re.compile(r"[ \t]*>[ \t]?")


class FencedBlock(NamedTuple):
    """A block of code and what its fence says about it, such as its language."""

    info: str
    code: str

    @property
    def is_python(self) -> bool:
        return _PYTHON.match(self.info) is not None


def find_blocks(text: str) -> list[FencedBlock]:
    """Return the blocks of a text in their order, without the indentation that all lines share."""
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    blocks = list(_find_fenced(text)) if "```" in text or "~~~" in text else []
    if not blocks and ("<" in text or "[" in text):
        blocks = list(_find_tagged(text))
    return [FencedBlock(info, textwrap.dedent(code)) for info, code in blocks]


def last_code(blocks: Sequence[FencedBlock]) -> str | None:
    """Return the last block of Python, else the last one of any kind; None if there is none."""
    last = [block for block in blocks if block.is_python][-1:] or blocks[-1:]
    return last[0].code if last else None


def _find_fenced(text: str, *, inside: bool = False) -> Iterator[FencedBlock]:
    """Yield the fenced blocks; those inside of a block of Markdown in its place, one level deep."""
    lines = text.splitlines(keepends=True)
    place = 0
    while place < len(lines):
        line = lines[place]
        place += 1
        if "```" not in line and "~~~" not in line:
            continue
        if one := _ONE_LINE.match(line.rstrip("\n")):
            yield FencedBlock("python", one[2].strip() + "\n")
        elif opening := _opens(line):
            content, place = _content(lines, place, opening)
            info = opening["info"].strip()
            inner = (
                []
                if inside or not _MARKDOWN.match(info)
                else list(_find_fenced(content, inside=True))
            )
            yield from inner or [FencedBlock(info, content)]


def _opens(line: str) -> re.Match[str] | None:
    """Return the match of a line that opens a block.

    Behind other text, a fence opens one if at most a language follows.
    """
    found = _OPENING.match(line.rstrip("\n"))
    if found and found["text"] and not _INFO_BEHIND_TEXT.fullmatch(found["info"]):
        return None
    return found


def _content(lines: Sequence[str], start: int, opening: re.Match[str]) -> tuple[str, int]:
    """Return the content of a block that begins on a line, and the line behind its end.

    A fence that no line closes may end a line of code, as in `print(1)` and a fence behind it.
    """
    fence, lead = opening["fence"], opening["lead"]
    if ">" in lead:
        stop = next((i for i in range(start, len(lines)) if not _QUOTED.match(lines[i])), None)
        lines = lines[:stop]
    end = next((i for i in range(start, len(lines)) if _closes(lines[i], fence)), None)
    if end is not None:
        return _unindent(lines[start:end], lead), end + 1
    for i in range(start, len(lines)):
        code = lines[i].rstrip()
        if code.endswith(fence) and not _opens(lines[i]):
            ended = [*lines[start:i], f"{code.removesuffix(fence)}\n"]
            return _unindent(ended, lead), i + 1
    return _unindent(lines[start:], lead), len(lines)


def _closes(line: str, fence: str) -> bool:
    bare = line.strip().lstrip("> \t")
    return len(bare) >= len(fence) and bare == fence[0] * len(bare)


def _unindent(lines: Sequence[str], lead: str) -> str:
    """Return the text of the lines without the quotation or the indentation of their fence."""
    if ">" in lead:
        return "".join(_QUOTED.sub("", line, count=1) for line in lines)
    indent = re.compile(rf"[ \t]{{0,{len(lead)}}}+")
    return "".join(indent.sub("", line, count=1) for line in lines)


def _find_tagged(text: str) -> Iterator[FencedBlock]:
    for found in _TAGGED.finditer(text):
        if found["plain"] is not None:
            yield FencedBlock("python", found["plain"].removeprefix("\n"))
        else:
            code = html.unescape(_INNER_CODE.sub("", found["html"]))
            yield FencedBlock("python", code.removeprefix("\n"))


NOTHING = object()
"""Result if there is no JSON, since `null` is JSON."""


def find_json(
    text: str, *, fenced: bool = True, parse_float: Callable[[str], float] | None = None
) -> Any:
    """Return the JSON of a text or of its last fenced block with JSON; NOTHING if there is none.

    `parse_float` is that of json.loads.
    """
    blocks = reversed([block.code for block in find_blocks(text)]) if fenced else ()
    for candidate in (text, *blocks):
        try:
            return json.loads(candidate, parse_float=parse_float)
        except (ValueError, RecursionError):
            continue
    return NOTHING


def same(one: object, other: object) -> bool:
    """Return True if two JSON values are equal.

    1 and 1.0 are, 1 and true are not; the order of keys does not matter.
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(
            same(value, other[key]) for key, value in one.items()
        )
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


def is_json(value: object) -> bool:
    """Return True if a value of a YAML file can be written as JSON."""
    if isinstance(value, dict):
        return all(isinstance(key, str) and is_json(inner) for key, inner in value.items())
    if isinstance(value, list):
        return all(map(is_json, value))
    return (
        value is None
        or isinstance(value, str | int)
        or (isinstance(value, float) and value - value == 0.0)
    )
