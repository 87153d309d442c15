"""The checker's side: runs the checks on what the program says its values are.

What is no built-in is a stand-in here. It is asked for what it is made of; but no operation that would hand the program
what is expected (==, <, in, arithmetic) is left to the program, which could answer anything to it.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable
from typing import Any

from serve_eval.sandbox._talk import STANDARD_MODULES, Side, refused


class _Own:
    """A value of the program that is no built-in."""

    def __init__(self, side: Side, number: int, name: str) -> None:
        vars(self).update(_side=side, _number=number, _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        return self._asked("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._asked("assign", name, value)

    def _asked(self, operation: str, *args: Any) -> Any:
        return vars(self)["_side"].ask(operation, vars(self)["_number"], args)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other is None:
            return False
        raise TypeError(
            f"the result is an object of the program's own class {vars(self)['_name']}, and == is the program's to say: "
            "compare what it is made of"
        )

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, key: Any) -> Any:
        return self._asked("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._asked("put", key, value)

    def __delitem__(self, key: Any) -> None:
        self._asked("drop", key)

    def __len__(self) -> Any:
        return self._asked("length")

    def __iter__(self) -> Any:
        return self._asked("iterate")

    def __next__(self) -> Any:
        return self._asked("next")

    def __str__(self) -> Any:
        return self._asked("text")

    def __repr__(self) -> Any:
        return self._asked("shown")

    def __bool__(self) -> Any:
        return self._asked("true")

    def __int__(self) -> Any:
        return self._asked("whole")

    def __float__(self) -> Any:
        return self._asked("number")

    def __index__(self) -> Any:
        return self._asked("index")

    def __enter__(self) -> Any:
        return self._asked("enter")

    def __exit__(self, *raised: Any) -> None:
        self._asked("leave")


class _OwnCallable(_Own):
    """A function or a class of it."""

    def __call__(self, *args: Any, **names: Any) -> Any:
        return vars(self)["_side"].ask("call", vars(self)["_number"], args, names)

    def __instancecheck__(self, other: Any) -> Any:
        return isinstance(other, _Own) and self._asked("instance", other)


class Checker(Side):
    """Asks the program, and lets it call the functions that it was given."""

    def __init__(self, source: int, sink: int, gone: Callable[[], None]) -> None:
        super().__init__(source, sink)
        self._gone = gone
        self._stand_ins: dict[int, Any] = {}

    def kind(self, value: Any) -> str:
        if isinstance(value, type) and issubclass(value, BaseException):
            return "class"
        if getattr(builtins, getattr(value, "__name__", ""), None) is value:
            return "builtin"
        if callable(value):
            return "callable"
        if hasattr(value, "__next__"):
            return "iterator"
        raise refused(value)

    def number(self, value: Any) -> int | None:
        if isinstance(value, _Own):
            return vars(value)["_number"]  # type: ignore[no-any-return]
        return next((number for number, kind in self._classes.items() if kind is value), None)

    def stand_in(self, number: int, kind: str, name: str) -> Any:
        if number not in self._stand_ins:
            made: Any = (_OwnCallable if kind == "callable" else _Own)(self, number, name)
            self._stand_ins[number] = self._coroutine(number) if kind == "coroutine" else made
            if kind == "module":
                vars(made)["_module"] = name
        return self._stand_ins[number]

    async def _coroutine(self, number: int) -> Any:
        return self.ask("wait", number)

    def perform(self, operation: str, thing: Any, args: tuple[Any, ...], names: dict[str, Any]) -> Any:
        if operation == "next":
            return next(thing)
        if operation == "call":
            return thing(*args, **names)
        raise ValueError("the program asks for what it may not")

    def receive(self) -> bytes:
        try:
            return super().receive()
        except BaseException:
            self._gone()
            raise

    def check(self, checks: str) -> None:
        """Run the checks with the names that the program defined. Raises what they raise."""
        compiled = compile(checks, "checks", "exec", dont_inherit=True)
        wanted = _names(compiled)
        everything = not wanted.isdisjoint({"eval", "exec", "globals", "locals", "vars"})
        own = self.ask("names", 0, (None if everything else list(wanted),))
        space = {name: _module(name, value) for name, value in own.items() if type(name) is str}
        exec(compiled, {**space, "__name__": "program"})


def _names(code: Any) -> set[str]:
    """What a code object and those within it call by name."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, type(code))]
    return set(code.co_names).union(*inner)


def _module(name: str, value: Any) -> Any:
    """A module of the standard library as our own; another value as it is."""
    if isinstance(value, _Own) and vars(value).get("_module") == name and name in STANDARD_MODULES:
        return __import__(name)
    return value

