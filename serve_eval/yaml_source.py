"""Read YAML safely, with the line of every key and list item for error messages.

Stricter than YAML: one document, no repeated keys, no anchors, aliases or merge keys (they can make
a small file explode), no tags beyond plain values, lists and mappings. PyYAML is imported when the
first text is parsed or written: many commands parse none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from serve_eval.errors import ServeEvalError

MOST_BYTES = 256 << 20
"""Maximum size of a file."""


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """A parsed file: `name` for messages, `value` as plain Python (None: an empty file).

    `lines` has the line of each path. `written` has, by path, each number, boolean and
    null that JSON would write differently: 3.10, 1_000, yes, ~ and nothing at all.
    """

    name: str
    value: Any
    lines: Mapping[tuple[Any, ...], int] = field(default_factory=dict, repr=False)
    written: Mapping[tuple[Any, ...], str] = field(default_factory=dict, repr=False)

    def line(self, *keys: object) -> int:
        """Return the 1-based line of a path of keys and indices, or of its nearest known parent."""
        return next(
            (self.lines[keys[:n]] for n in range(len(keys), -1, -1) if keys[:n] in self.lines), 1
        )


def read(path: Path, error: type[ServeEvalError], *, text_keys: bool = False) -> YamlDocument:
    """Return the document in a file; `text_keys` as in `parse`.

    Raises `error`, with file and line, if the file cannot be read, decoded or parsed.
    """
    return parse(read_text(path, error), str(path), error, text_keys=text_keys)


def read_text(path: Path, error: type[ServeEvalError]) -> str:
    """Return the text of a file. Raises `error`, with file and line, if it cannot be read."""
    try:
        if path.stat().st_size > MOST_BYTES:
            raise error(
                f"{path}: is larger than {MOST_BYTES >> 20} MiB", hint="Split it into files."
            )
        raw = path.read_bytes()
    except OSError as problem:
        why, hint = problem.strerror or problem, "Check the path: it must be a file."
        raise error(f"{path}: cannot be read: {why}", hint=hint) from problem
    try:
        return raw.decode()
    except UnicodeDecodeError as problem:
        line = raw.count(b"\n", 0, problem.start) + 1
        raise error(f"{path}:{line}: not UTF-8 text", hint="Save the file as UTF-8.") from problem


def parse(
    text: str, name: str, error: type[ServeEvalError], *, text_keys: bool = False
) -> YamlDocument:
    """Return the document in a text; `name` replaces the file name in messages.

    With `text_keys`, the keys of mappings stay the texts that were written, also 1 and yes. Raises
    `error`, with the line, also if parsing takes too long.
    """
    from serve_eval.yaml_parsing import parse_text

    value, lines, written = parse_text(text, name, error, text_keys=text_keys)
    return YamlDocument(name, value, lines, written)


def dump(content: Any) -> str:
    """Return content as YAML text that reads as the same content, in its order."""
    from serve_eval.yaml_parsing import dump_text

    return dump_text(content)
