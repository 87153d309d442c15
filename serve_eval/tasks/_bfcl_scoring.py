"""Read the calls of an answer to a question of BFCL, and score them.

A text such as `[f(a=1), g(b="x")]` is parsed as Python and never run.
"""

from __future__ import annotations

import ast
import json
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

from serve_eval.schema import Outcome, Response, Sample, Score
from serve_eval.scorers.tool_call import as_text
from serve_eval.tasks._bfcl_checking import (
    CallError,
    Expectation,
    MadeCall,
    check_calls,
    fill,
    read_expectation,
)
from serve_eval.tasks._bfcl_rows import CORRECT, WEIGHT, weight_of

LARGEST_BASE, LARGEST_POWER, LARGEST = 10**9, 400, 10.0**300
"""Numbers up to which arithmetic is done, so that an answer cannot make it long."""


class UnreadableError(ValueError):
    """The answer has no calls in the form that was asked for."""


def read_served(response: Response) -> list[MadeCall]:
    """Return the calls that the server parsed.

    Raises UnreadableError if the arguments of one are no JSON object.
    """
    found = []
    for call in response.tool_calls:
        try:
            arguments = json.loads(call.arguments)
        except (ValueError, RecursionError) as error:
            raise UnreadableError(str(error)) from error
        if not isinstance(arguments, dict):
            raise UnreadableError("arguments are no object")
        found.append(MadeCall(call.name, arguments))
    return found


def read_text(text: str) -> list[MadeCall]:
    """Return the calls of a text, a Python list of them, whose brackets may be missing.

    Raises UnreadableError if it is nothing else. Positional arguments do not count.
    """
    text = text.strip("`\n ")
    text = text if text.startswith("[") else f"[{text}"
    text = text if text.endswith("]") else f"{text}]"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            body = ast.parse(text, mode="eval").body
        if not isinstance(body, ast.List):
            raise UnreadableError("no list")
        return [MadeCall(*_read_call(item)) for item in body.elts]
    except UnreadableError:
        raise
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError) as error:
        raise UnreadableError(str(error)) from error


def _read_call(call: ast.expr) -> tuple[str, dict[Any, Any]]:
    if not isinstance(call, ast.Call):
        raise UnreadableError(f"{type(call).__name__} is no call")
    parts: list[str] = []
    place = call.func
    while isinstance(place, ast.Attribute):
        parts.append(place.attr)
        place = place.value
    if isinstance(place, ast.Name):
        parts.append(place.id)
    arguments = {one.arg: _read_value(one.value) for one in call.keywords}
    return ".".join(reversed(parts)), arguments


def _read_value(node: ast.expr | None) -> Any:
    """Return the value of an argument. Names and calls become texts, as upstream has them."""
    read = _READERS.get(type(node))
    if read is None:
        raise UnreadableError(f"{type(node).__name__} is no value")
    return read(node)


def _read_constant(node: ast.Constant) -> Any:
    return "..." if node.value is Ellipsis else node.value


def _negate(node: ast.UnaryOp) -> Any:
    """Return the negative operand: upstream reads every sign and `not` as a minus."""
    if not isinstance(node.operand, ast.Constant):
        raise UnreadableError("a sign before something that is no constant")
    value: Any = node.operand.value
    return -value


def _read_inner_call(node: ast.Call) -> Any:
    if not node.keywords:
        return ast.unparse(node)
    name, arguments = _read_call(node)
    return {name: arguments}


_READERS: Mapping[type, Callable[[Any], Any]] = {
    ast.Constant: _read_constant,
    ast.UnaryOp: _negate,
    ast.List: lambda node: [_read_value(item) for item in node.elts],
    ast.Tuple: lambda node: tuple(_read_value(item) for item in node.elts),
    ast.Dict: lambda node: {
        _read_value(key): _read_value(value)
        for key, value in zip(node.keys, node.values, strict=True)
    },
    ast.BinOp: lambda node: _calculate(node),
    ast.Name: lambda node: node.id,
    ast.Call: _read_inner_call,
    ast.Subscript: lambda node: f"{ast.unparse(node.value)}[{ast.unparse(node.slice)}]",
}

_OPERATORS: Mapping[type, Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.Pow: operator.pow,
}


_SIGNS: Mapping[type, Callable[[Any], Any]] = {
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Invert: operator.invert,
}


def _calculate(node: ast.expr) -> Any:
    """Return the result of arithmetic with numbers, or of joined strings; nothing else is done."""
    if isinstance(node, ast.Constant) and type(node.value) in (int, float, str):
        return node.value
    try:
        if isinstance(node, ast.UnaryOp) and type(node.op) in _SIGNS:
            return _SIGNS[type(node.op)](_calculate(node.operand))
        if isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
            return _combine(node.op, _calculate(node.left), _calculate(node.right))
    except (ArithmeticError, TypeError) as error:
        raise UnreadableError(str(error)) from error
    raise UnreadableError("an operation that is no arithmetic")


def _combine(operation: ast.operator, left: Any, right: Any) -> Any:
    if isinstance(left, str) or isinstance(right, str):
        if not isinstance(operation, ast.Add):
            raise UnreadableError("an operation with a string that does not join")
        return left + right
    if isinstance(operation, ast.Pow) and (abs(left) > LARGEST_BASE or abs(right) > LARGEST_POWER):
        raise UnreadableError("a power that is too large")
    found = _OPERATORS[type(operation)](left, right)
    if type(found) not in (int, float) or abs(found) > LARGEST:
        raise UnreadableError("a result that is no usual number")
    return found


Mode = Literal["fc", "prompt"]


def score_calls(sample: Sample, response: Response, mode: Mode) -> Score:
    """Score 1 if the calls are those that the sample expects, else 0 with what is wrong."""
    wanted = read_expectation(sample)
    answer = _show(response)
    try:
        made = read_served(response) if mode == "fc" else read_text(response.text)
        error = _judge(wanted, made)
    except UnreadableError:
        error = None if wanted.wanted == "no call" else CallError.UNREADABLE
    weight, value = weight_of(sample), float(error is None)
    return Score(
        value=value,
        outcome=_OUTCOMES.get(error, Outcome.WRONG),
        answer=answer,
        parts={CORRECT: weight * value, WEIGHT: weight},
        mode=None if error is None else error.value,
    )


_OUTCOMES: Mapping[CallError | None, Outcome] = {
    None: Outcome.CORRECT,
    CallError.UNREADABLE: Outcome.UNPARSED,
}


def _judge(wanted: Expectation, made: Sequence[MadeCall]) -> CallError | None:
    if wanted.wanted == "calls":
        return check_calls(wanted.calls, made)
    if wanted.wanted == "any call":
        return None if made else CallError.NONE
    return CallError.NEEDLESS if made else None


def _show(response: Response) -> str:
    calls = [{"name": call.name, "arguments": call.arguments} for call in response.tool_calls]
    return json.dumps(calls, ensure_ascii=False) if calls else response.text


def answer_rightly(sample: Sample, mode: Mode) -> tuple[str, str]:
    """Return a right answer and a wrong one, as texts that the simulated endpoint returns."""
    wanted = read_expectation(sample)
    calls = [(call.name, fill(call)) for call in wanted.calls] or [("any_function", {})]
    if mode == "fc":
        called = as_text([{"name": name, "arguments": filled} for name, filled in calls])
    else:
        called = f"[{', '.join(_write(name, filled) for name, filled in calls)}]"
    declined = "None of the functions can be used."
    return (declined, called) if wanted.wanted == "no call" else (called, declined)


def _write(name: str, arguments: Mapping[str, Any]) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def name_failure(sample: Sample, response: Response, score: Score) -> str:
    """Return what is wrong with the calls of an answer."""
    return score.mode or score.outcome.value
