"""Read the prose of a checkout: docstrings, comments, messages, and pages without their code."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
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


def docstrings(file: Path) -> Iterator[Prose]:
    """Yield the docstrings of a file: of the module, classes, functions, and of constants."""
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        match node:
            case ast.Expr(value=ast.Constant(value=str() as text)):
                yield Prose(file, node.lineno, text)


def comments(file: Path) -> Iterator[Prose]:
    """Yield the comments of a file, those of consecutive lines as one."""
    block: list[tuple[int, str]] = []
    for token in tokenize.generate_tokens(io.StringIO(file.read_text("utf-8")).readline):
        if token.type != tokenize.COMMENT:
            continue
        if block and token.start[0] > block[-1][0] + 1:
            yield Prose(file, block[0][0], " ".join(text for _, text in block))
            block = []
        block.append((token.start[0], token.string.lstrip("#! ")))
    if block:
        yield Prose(file, block[0][0], " ".join(text for _, text in block))


def messages(file: Path) -> Iterator[Prose]:
    """Yield the strings of a file that are no docstrings and have at least MIN_WORDS words."""
    tree = ast.parse(file.read_text("utf-8"))
    known = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}  # docstrings
    for node in ast.walk(tree):
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
