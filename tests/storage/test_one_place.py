"""Test that only storage/ names and opens the files of a run.

Other modules use its readers and writers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import serve_eval
from serve_eval.storage import file_names

ROOT = Path(serve_eval.__file__).parent
STORAGE = ROOT / "evaluation" / "storage"
NAMES = {
    name: value
    for name, value in vars(file_names).items()
    if name.isupper() and isinstance(value, str)
}
FILES = {value for value in NAMES.values() if "." in value}
FOLDERS = set(NAMES.values()) - FILES - {file_names.SIDE_A, file_names.SIDE_B, file_names.LOCK_FILE}
FUNCTIONS = {
    name
    for name, value in vars(file_names).items()
    if callable(value) and name.endswith(("_file", "_samples"))
}
OPENING = {"open", "read_bytes", "read_text", "write_bytes", "write_text", "unlink"}
PATHS = {"Path", "glob", "rglob", "joinpath", "with_name"}
IN_TEXT = re.compile(rf"[\"'/}}](?:{'|'.join(map(re.escape, FILES | FOLDERS))})[\"'/{{]")
"""A name between quotes, slashes and braces, as all parts of a path are."""
OTHERS = {
    ("workflows/servers", "servers"): "the folder of a user's state for held servers",
    (
        "workflows/references",
        "samples",
    ): "the folder of a collection of references, next to its YAML files",
    ("workflows/capsule", "logs"): "the folder of a capsule",
}
"""Paths that share the name of a folder of a run."""


def _modules() -> list[Path]:
    return [path for path in sorted(ROOT.rglob("*.py")) if not path.is_relative_to(STORAGE)]


def _named(text: str) -> set[str]:
    """Return the files and folders of a run that a piece of a path names."""
    return (FILES | FOLDERS) & set(re.split(r"[/{}]", text))


def _texts(node: ast.AST) -> Iterator[str]:
    """Yield the constant texts of a path operand, but not those of calls and look-ups."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        for part in node.values:
            yield from _texts(part)


def _literals(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the places that build a path from a name that only storage should know.

    Names of files count anywhere.
    """
    for node in ast.walk(tree):
        operands: list[ast.expr] = []
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
            operands = [node.left, node.right]
        elif isinstance(node, ast.Call):
            called = (
                node.func.attr
                if isinstance(node.func, ast.Attribute)
                else getattr(node.func, "id", "")
            )
            operands = node.args if called in PATHS else []
        found = {name for operand in operands for text in _texts(operand) for name in _named(text)}
        if isinstance(node, ast.Constant) and node.value in FILES:
            found.add(str(node.value))
        yield from ((getattr(node, "lineno", 0), name) for name in sorted(found))


def _opened(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the places that open a path built from names of storage.

    The path may be in a variable.
    """
    known = {
        alias.asname or alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module == file_names.__name__
        for alias in node.names
    }
    if not known:  # then no variable of the module is a path of a known name
        return
    functions = [
        node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    for function in functions:
        tainted = set(known)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and _is_path(node.value, tainted):
                tainted |= {
                    name.id
                    for target in node.targets
                    for name in ast.walk(target)
                    if isinstance(name, ast.Name)
                }
        for node in ast.walk(function):
            if not isinstance(node, ast.Call):
                continue
            attribute = node.func.attr if isinstance(node.func, ast.Attribute) else ""
            if (
                attribute in OPENING
                and isinstance(node.func, ast.Attribute)
                and _is_path(node.func.value, tainted)
            ):
                yield node.lineno, f".{attribute}()"
            if (
                node.args
                and _is_path(node.args[0], tainted)
                and ast.unparse(node.func) in ("open", "os.open")
            ):
                yield node.lineno, "open()"


def _is_path(node: ast.expr, tainted: set[str]) -> bool:
    """Return True if an expression is a path of a known name.

    It is a division, a call of a path function, or a variable.
    """
    if isinstance(node, ast.Name):
        return node.id in tainted
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
        return _is_path(node.left, tainted) or _is_path(node.right, tainted)
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in tainted & FUNCTIONS
    )


def _excused(module: Path, name: str) -> bool:
    return any(
        folder in module.relative_to(ROOT).as_posix() and name == other for folder, other in OTHERS
    )


@cache
def _scan() -> tuple[list[str], list[str]]:
    """Return the places of the package that name, and those that open, the files of a run."""
    named: list[str] = []
    opened: list[str] = []
    for module in _modules():
        text = module.read_text()
        if not IN_TEXT.search(text) and file_names.__name__ not in text:
            continue  # most modules need no tree
        tree = ast.parse(text)
        place = module.relative_to(ROOT)
        named += [
            f"{place}:{line}: {name}"
            for line, name in _literals(tree)
            if not _excused(module, name)
        ]
        opened += [f"{place}:{line}: {how}" for line, how in _opened(tree)]
    return named, opened


def test_only_storage_knows_the_names_of_the_files_of_a_run() -> None:
    found, _ = _scan()
    assert not found, "take them from storage/file_names.py:\n" + "\n".join(found)


def test_only_storage_opens_the_files_of_a_run() -> None:
    _, found = _scan()
    assert not found, "read and write them by a function of storage/:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ('run / "scores" / f"{stem}.jsonl"', ["scores"]),
        ('run / f"samples/{stem}.jsonl"', ["samples"]),
        ('Path("executions")', ["executions"]),
        ('out.glob("*/judgements/*.jsonl")', ["judgements"]),
        ('names = ("report.json", other)', ["report.json"]),
        ('fingerprint["samples"], told.get("logs")', []),
        ('print(f"see {run}: report.json names the files")', []),
    ],
)
def test_the_scan_sees_names_in_paths_and_nowhere_else(source: str, seen: list[str]) -> None:
    assert [name for _, name in _literals(ast.parse(source))] == seen


@pytest.mark.parametrize(
    ("body", "seen"),
    [
        ("scores_file(run, task).read_bytes()", [".read_bytes()"]),
        ("file = run / REPORT_FILE\n    file.unlink()", [".unlink()"]),
        ("file = run / REPORT_FILE\n    with open(file) as it: pass", ["open()"]),
        ("Journal(scores_file(run, task))\n    other.read_text()", []),
    ],
)
def test_the_scan_sees_files_that_are_opened_past_storage(body: str, seen: list[str]) -> None:
    source = (
        f"from {file_names.__name__} import REPORT_FILE, scores_file\ndef f(run, task):\n   "
        f" {body}\n"
    )
    assert [how for _, how in _opened(ast.parse(source))] == seen
