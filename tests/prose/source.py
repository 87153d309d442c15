"""Read the prose of a checkout: docstrings, comments, messages, and pages without their code."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PACKAGES = ("serve_eval", "launchers")
OTHERS = ("tests", "bench", "training")
PAGES = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/*.md")
MIN_WORDS = 3
"""A string with fewer words is a name or a value, not a message."""

_FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]*`")


@dataclass(frozen=True, slots=True)
class Prose:
    """A piece of text for people, at the first line of where it stands."""

    file: Path
    line: int
    text: str


def python_files(root: Path, folders: tuple[str, ...]) -> list[Path]:
    """Return the Python files below some folders of a checkout."""
    return [file for folder in folders for file in sorted((root / folder).rglob("*.py"))]


def docstrings(file: Path) -> Sequence[Prose]:
    """Return the docstrings of a file: of the module, classes, functions, and of constants."""
    return _parse_texts(file)[0]


@cache
def comments(file: Path) -> Sequence[Prose]:
    """Return the comments of a file, those of consecutive lines as one."""
    return tuple(_find_comments(file))


def messages(file: Path) -> Sequence[Prose]:
    """Return the strings of a file that are no docstrings and have at least MIN_WORDS words."""
    return _parse_texts(file)[1]


@cache  # several checks read the same files, and parsing is most of their time
def _parse_texts(file: Path) -> tuple[Sequence[Prose], Sequence[Prose]]:
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    return tuple(_find_docstrings(file, nodes)), tuple(_find_messages(file, nodes))


def _find_docstrings(file: Path, nodes: Sequence[ast.AST]) -> Iterator[Prose]:
    for node in nodes:
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield Prose(file, node.lineno, text)


def _find_comments(file: Path) -> Iterator[Prose]:
    block: list[tuple[int, str]] = []
    source = file.read_text("utf-8")
    if "#" not in source:
        return
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] > block[-1][0] + 1:
            yield Prose(file, block[0][0], " ".join(text for _, text in block))
            block = []
        block.append((token.start[0], token.string.lstrip("#! ")))
    if block:
        yield Prose(file, block[0][0], " ".join(text for _, text in block))


def _find_messages(file: Path, nodes: Sequence[ast.AST]) -> Iterator[Prose]:
    known = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}  # docstrings
    for node in nodes:
        if isinstance(node, ast.JoinedStr):
            known |= {id(part) for part in node.values}
            text = "".join(
                str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = node.value
        else:
            continue
        if id(node) not in known and len(re.findall(r"[A-Za-z]{2,}", text)) >= MIN_WORDS:
            yield Prose(file, node.lineno, text)


def pages(root: Path) -> Iterator[Prose]:
    """Yield each paragraph of the pages, without fenced code and the text in backticks."""
    for pattern in PAGES:
        for file in sorted(root.glob(pattern)):
            text = _FENCE.sub(lambda found: "\n" * found[0].count("\n"), file.read_text("utf-8"))
            line = 1
            for paragraph in re.split(r"(\n\s*\n)", text):
                if paragraph.strip():
                    yield Prose(file, line, _CODE.sub("`code`", paragraph))
                line += paragraph.count("\n")
