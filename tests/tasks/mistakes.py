"""Name the line of a mistake in an added file, instead of showing a traceback."""

from __future__ import annotations

import ast
import importlib
import re
import traceback
from contextlib import contextmanager
from pathlib import Path

from serve_eval.errors import ServeEvalError
from serve_eval.plugins.returned import describe_fields
from tests.root import ROOT

TASKS = "serve_eval/tasks"
ADDED = (TASKS, "serve_eval/scorers", "serve_eval/verdicts/rules")
"""Folders to which people add files."""
MADE = "tests/tasks/made_data.py"
_PLACED = re.compile(r"serve_eval/\S+\.py:(\d+:)? ")
"""The beginning of a message that names its file."""
AGAIN = "then run make task-pages again"


class Mistake(Exception):
    """A file has a mistake or lacks something; the text has the file, the line and what to do."""


def find_line(file, pattern):
    """Return the number of the first line that begins with a pattern."""
    lines = file.read_text("utf-8", errors="replace").splitlines()
    return next((i for i, line in enumerate(lines, 1) if re.match(pattern, line)), None)


def check_files():
    """Import each file that people add. Raises Mistake for the first that lacks something."""
    for folder in ADDED:
        for file in sorted((ROOT / folder).glob("[!_]*.py")):
            place = file.relative_to(ROOT).as_posix()
            with blame(place):
                module = importlib.import_module(f"{folder.replace('/', '.')}.{file.stem}")
            if not (module.__doc__ or "").strip().partition("\n")[0]:
                raise Mistake(
                    f"{place}:1: the file has no docstring\n"
                    f"Begin it with one, whose first line says in a sentence what it is,"
                    f" {AGAIN}."
                )
            if folder == TASKS and not callable(getattr(module, "task", None)):
                raise Mistake(
                    f"{place}:1: the file has no function task(*, ...)\n"
                    f"Write it as in docs/extending.md, {AGAIN}."
                )


@contextmanager
def blame(place):
    """Raise Mistake, with a line, for any other error.

    The line is the deepest in a file that people add; without one, that of the function in
    `place`.
    """
    try:
        yield
    except Mistake:
        raise
    except ServeEvalError as error:
        told = "\n".join(filter(None, (str(error), error.hint))).replace(f"{ROOT}/", "")
        if _PLACED.match(told) is None:
            where = _find_deepest(error) or f"{place}:{_find_function(ROOT / place)}"
            told = f"{where}: {told}"
        raise Mistake(f"{told}\nMend it, {AGAIN}.") from error
    except Exception as error:
        line = _find_deepest(error)
        where = line or f"{place}:{_find_function(ROOT / place)}"
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        kind = type(error).__name__
        told = describe_fields(error) or f"{kind}{': ' if said else ''}{said}"
        raise Mistake(
            f"{where}: {told}\nMend this {'line' if line else 'function'}, {AGAIN}."
        ) from error


def _find_deepest(error):
    """Return FILE:LINE of the deepest frame in a file that people add, or of wrong syntax."""
    if isinstance(error, SyntaxError) and error.filename:
        file = Path(error.filename)
        shown = file.relative_to(ROOT) if file.is_relative_to(ROOT) else file
        return f"{shown}:{error.lineno}"
    added = [*(ROOT / folder for folder in ADDED), ROOT / MADE]
    found = [
        (file.relative_to(ROOT).as_posix(), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
        if any((file := Path(frame.f_code.co_filename)).is_relative_to(one) for one in added)
    ]
    return f"{found[-1][0]}:{found[-1][1]}" if found else None


def _find_function(file):
    """Return the line of the function that a file offers, or 1."""
    for node in ast.parse(file.read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef) and node.name in (
            "task",
            "scorer",
            "judge",
            "write_all",
        ):
            return node.lineno
    return 1
