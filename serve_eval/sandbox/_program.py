"""Run the program's code, then answer the checker's requests: the program's side.

Nothing here decides a verdict.
"""

from __future__ import annotations

import _thread
import builtins
import os
import sys

from serve_eval.sandbox._talk import ANSWER, REQUEST, Over, TalkSide

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MAIN = _thread.get_ident()


class _Given:
    """A function or an iterator of the checks."""

    def __init__(self, side: TalkSide, number: int) -> None:
        self._side, self._number = side, number

    def __call__(self, *args: Any, **names: Any) -> Any:
        return self._side.ask("call", self._number, args, names)

    def __iter__(self) -> _Given:
        return self

    def __next__(self) -> Any:
        return self._side.ask("next", self._number)


def _wait(thing: Any) -> Any:
    import asyncio

    async def waits() -> Any:
        return await thing

    return asyncio.run(waits())


def _set(thing: Any, key: Any, value: Any) -> None:
    thing[key] = value


def _drop(thing: Any, key: Any) -> None:
    del thing[key]


OPERATIONS: dict[str, Callable[..., Any]] = {
    "call": lambda thing, *args, **names: thing(*args, **names),
    "attribute": getattr,
    "assign": setattr,
    "item": lambda thing, key: thing[key],
    "put": _set,
    "drop": _drop,
    "length": len,
    "iterate": iter,
    "next": next,
    "text": str,
    "shown": repr,
    "true": bool,
    "whole": int,
    "number": float,
    "index": lambda thing: thing.__index__(),
    "instance": lambda thing, other: isinstance(other, thing),
    "wait": _wait,
    "enter": lambda thing: type(thing).__enter__(thing),
    "leave": lambda thing: type(thing).__exit__(thing, None, None, None),
}


class RunningProgram(TalkSide):
    """Answer requests about the values that the code defined."""

    def kind(self, value: Any) -> str:
        if isinstance(value, type(sys)):
            return "module"
        if type(value).__name__ == "coroutine":
            return "coroutine"
        return "callable" if callable(value) else "object"

    def number(self, value: Any) -> int | None:
        return value._number if type(value) is _Given else None

    def stand_in(self, number: int, kind: str, name: str) -> Any:
        return _Given(self, number)

    def perform(
        self, operation: str, thing: Any, args: tuple[Any, ...], names: dict[str, Any]
    ) -> Any:
        if operation == "names":
            wanted, own = args[0], thing
            return {name: own[name] for name in (own if wanted is None else wanted) if name in own}
        return OPERATIONS[operation](thing, *args, **names)

    def ask(
        self,
        operation: str,
        number: int,
        args: tuple[Any, ...] = (),
        names: dict[str, Any] | None = None,
    ) -> Any:
        if _thread.get_ident() != _MAIN:
            raise RuntimeError(
                "functions and iterators of the checks can only be used in the main thread"
            )
        return super().ask(operation, number, args, names)

    def serve(self, code: str) -> None:
        """Run the code, then answer requests until the checker closes its pipe."""
        leave = os._exit
        hidden, self.named = frozenset(vars(builtins)), dict(vars(builtins))
        space: dict[str, Any] = {"__name__": "program"}
        exec(compile(code, "<program>", "exec", dont_inherit=True), space)  # noqa: S102  (the purpose of this process)
        self._flush()
        self._things.append({name: value for name, value in space.items() if name not in hidden})
        self.send(ANSWER)
        try:
            while True:
                message = self.receive()
                if message[:1] == REQUEST:
                    self.answer(message)
        except Over:
            leave(0)
