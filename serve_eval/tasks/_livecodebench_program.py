"""Run a solution on one test after the other, as LiveCodeBench does: the program's side.

The text of this file is the beginning of each program in the sandbox, so it imports nothing of
serve_eval. The last lines of the program call `take`. The checks, in a process of their own, then
call `run_test` with the input of each test; outputs never get here.

Source of the behaviour: LiveCodeBench/LiveCodeBench, lcb_runner/evaluation/testing_util.py (MIT).
It keeps two oddities of the upstream: `for line in sys.stdin` fails, and so does a program for
standard input that has the text "class Solution".
"""

from __future__ import annotations

import ast
import builtins
import io
import json
import os
import signal
import sys
import types

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

STARRED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools"
    " operator io sys json builtins typing"
)
NAMED = (
    "string re datetime collections heapq bisect copy math random statistics itertools functools"
    " operator io sys json"
)
PREAMBLE = (
    "".join(f"from {name} import *\n" for name in STARRED.split())
    + "".join(f"import {name}\n" for name in NAMED.split())
    + "sys.setrecursionlimit(50000)\n"
)
"""Imports before each solution."""
TAKEN_AWAY = (
    "kill system putenv remove removedirs rmdir fchdir setuid fork forkpty killpg rename renames"
    " truncate replace unlink fchmod fchown chmod chown chroot lchflags lchmod lchown getcwd chdir"
)
"""Functions of os that are None for a solution."""
NOT_IMPORTABLE = ("ipdb", "joblib", "resource", "psutil", "tkinter")
DIGITS = 50000
"""Digits of an integer that can be written."""
_SOLUTION: dict[str, Any] = {}


class TimeoutException(Exception):
    """A test took too long."""


def take(source: str, function: str | None, limit_s: int) -> None:
    """Keep a solution, which runs with the first test; `function` is None for standard input."""
    _SOLUTION.update(source=source, function=function, limit_s=limit_s)


def run_test(given: str) -> Any:
    """Return the output of a solution for the input of a test.

    It is the text on standard output, or the value of the function. Raises what the solution
    raises, and TimeoutException.
    """
    if "method" not in _SOLUTION:
        _SOLUTION["method"] = _compile()
    method = _SOLUTION["method"]
    if _SOLUTION["function"] is None:
        return _print(method, given)
    arguments = [json.loads(line) for line in given.split("\n")]
    signal.alarm(_SOLUTION["limit_s"])
    try:
        value = method(*arguments)
    finally:
        signal.alarm(0)
    return list(value) if isinstance(value, tuple) else value


def _compile() -> Callable[..., Any]:
    """Return the function of a solution. Raises what its first lines raise."""
    for name in TAKEN_AWAY.split():
        setattr(os, name, None)
    for name in NOT_IMPORTABLE:
        sys.modules[name] = None  # type: ignore[assignment]
    vars(builtins).update(exit=sys.exit, quit=None)
    sys.set_int_max_str_digits(DIGITS)
    signal.signal(signal.SIGALRM, _ring)
    source, function = _SOLUTION["source"], _SOLUTION["function"]
    if function is None:
        source, function = _wrap(_unguard(source)), "wrapped_function"
    else:
        source = f"{PREAMBLE}\n\n{source}"
    module = types.ModuleType("tmp_sol", "")
    signal.alarm(_SOLUTION["limit_s"])
    try:
        exec(source, vars(module))  # noqa: S102  (the purpose of this process)
        owner = module.Solution() if "class Solution" in source else module
    finally:
        signal.alarm(0)
    found: Callable[..., Any] = getattr(owner, function)
    return found


def _ring(*told: object) -> None:
    sys.stdout.write("timeout occured: alarm went off\n")
    raise TimeoutException


def _unguard(source: str) -> str:
    """Return a solution whose last block runs also if it is not the main module."""
    try:
        *before, last = ast.parse(source).body
        if isinstance(last, ast.If) and ast.unparse(last.test) == "__name__ == '__main__'":
            return f"{_write(before)}\n{_write(last.body)}"
    except Exception:
        return source
    return source


def _wrap(source: str) -> str:
    """Return a solution as the body of a function, behind its imports.

    A text that is no program stays as it is.
    """
    try:
        body = ast.parse(source).body
        imports = [one for one in body if isinstance(one, ast.Import | ast.ImportFrom)]
        others = [one for one in body if not isinstance(one, ast.Import | ast.ImportFrom)]
        arguments = ast.arguments(
            posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[]
        )
        function = ast.FunctionDef(
            name="wrapped_function", args=arguments, body=others, decorator_list=[], lineno=-1
        )
        return f"{PREAMBLE}\n{_write(imports)}\n{ast.unparse(function)}"
    except Exception:
        return source


def _write(statements: list[Any]) -> str:
    return ast.unparse(ast.Module(body=statements, type_ignores=[]))


class _Buffer:
    """Standard input as bytes."""

    def __init__(self, given: str) -> None:
        self.inputs = given.encode("utf-8")

    def read(self, *told: object) -> bytes:
        return self.inputs

    def readline(self, *told: object) -> bytes:
        return self.inputs.split(b"\n")[0] + b"\n"


class _Stdin:
    """Standard input of a test. It is no iterator."""

    def __init__(self, given: str) -> None:
        self.inputs, self.lines, self.buffer = given, io.StringIO(given), _Buffer(given)

    def read(self, *told: object) -> str:
        return self.inputs

    def readline(self, *told: Any) -> str:
        return self.lines.readline(*told)

    def readlines(self, *told: object) -> list[str]:
        return self.inputs.split("\n")

    def __getattr__(self, name: str) -> Any:
        return getattr(self.lines, name)


def _print(method: Callable[[], object], given: str) -> str:
    """Return what a solution prints for an input.

    Names that it imported from sys keep the first standard input, which reads the same, and the
    first standard output, which is not read.
    """
    first, real, opened, lines = sys.stdin, sys.stdout, builtins.open, iter(given.split("\n"))
    out: Any = io.StringIO()
    out.close = lambda wanted: wanted
    replaced = {
        "read": lambda *told: given,
        "readlines": lambda *told: given.split("\n"),
        "readline": lambda *told: next(lines),
    }
    signal.alarm(_SOLUTION["limit_s"])
    try:
        vars(first).update(replaced)
        vars(sys).update(stdin=_Stdin(given), stdout=out)
        vars(builtins)["open"] = _mock_open(given)
        method()
    except SystemExit:
        pass
    finally:
        signal.alarm(0)
        vars(sys).update(stdin=first, stdout=real)
        vars(builtins)["open"] = opened
        for name in replaced:
            vars(first).pop(name, None)
    said: str = out.getvalue()
    return said


def _mock_open(given: str) -> Callable[..., Any]:
    """Return a function in place of `open`, which makes a mock with the input when it is called."""
    made: list[Any] = []

    def opens(*told: Any, **named: Any) -> Any:
        if not made:
            from unittest.mock import mock_open

            made.append(mock_open(read_data=given))
        return made[0](*told, **named)

    return opens
