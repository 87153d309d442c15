"""Run the checks on the values of the program: the checker's side.

A value that is not a built-in is represented by a stand-in. The stand-in asks the program for its
parts. It never passes an operation that would reveal the expected value (==, <, in, arithmetic) to
the program, which could return any result.
"""

from __future__ import annotations

import builtins

from serve_eval.sandbox._talk import STANDARD_MODULES, TalkSide, build_refusal

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


SEARCHING = {"eval", "exec", "globals", "locals", "vars"}
"""Names of functions that give checks access to any name."""


class _Own:
    """A value of the program that is not a built-in."""

    def __init__(self, side: TalkSide, number: int, name: str) -> None:
        vars(self).update(_side=side, _number=number, _name=name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name != "__name__":
            raise AttributeError(name)
        return self._ask("attribute", name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._ask("assign", name, value)

    def _ask(self, operation: str, *args: Any) -> Any:
        return vars(self)["_side"].ask(operation, vars(self)["_number"], args)

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if other is None:
            return False
        raise TypeError(
            f"== of the program's own class {vars(self)['_name']} is decided by the program: "
            "compare its parts instead"
        )

    def __hash__(self) -> int:
        return id(self)

    def __getitem__(self, key: Any) -> Any:
        return self._ask("item", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._ask("put", key, value)

    def __delitem__(self, key: Any) -> None:
        self._ask("drop", key)

    def __len__(self) -> Any:
        return self._ask("length")

    def __iter__(self) -> Any:
        return self._ask("iterate")

    def __next__(self) -> Any:
        return self._ask("next")

    def __str__(self) -> Any:
        return self._ask("text")

    def __repr__(self) -> Any:
        return self._ask("shown")

    def __bool__(self) -> Any:
        return self._ask("true")

    def __int__(self) -> Any:
        return self._ask("whole")

    def __float__(self) -> Any:
        return self._ask("number")

    def __index__(self) -> Any:
        return self._ask("index")

    def __enter__(self) -> Any:
        return self._ask("enter")

    def __exit__(self, *raised: Any) -> None:
        self._ask("leave")


class _OwnCallable(_Own):
    """A function or class of the program."""

    def __call__(self, *args: Any, **names: Any) -> Any:
        return vars(self)["_side"].ask("call", vars(self)["_number"], args, names)

    def __instancecheck__(self, other: Any) -> Any:
        return isinstance(other, _Own) and self._ask("instance", other)


class Checker(TalkSide):
    """Send requests to the program, and let it call the functions that it received."""

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
        raise build_refusal(value)

    def number(self, value: Any) -> int | None:
        if isinstance(value, _Own):
            return vars(value)["_number"]  # type: ignore[no-any-return]
        return None

    def stand_in(self, number: int, kind: str, name: str) -> Any:
        if number not in self._stand_ins:
            made: Any = (_OwnCallable if kind == "callable" else _Own)(self, number, name)
            self._stand_ins[number] = self._coroutine(number) if kind == "coroutine" else made
            if kind == "module":
                vars(made)["_module"] = name
        return self._stand_ins[number]

    async def _coroutine(self, number: int) -> Any:
        return self.ask("wait", number)

    def perform(
        self, operation: str, thing: Any, args: tuple[Any, ...], names: dict[str, Any]
    ) -> Any:
        if operation == "next":
            return next(thing)
        if operation == "call":
            return thing(*args, **names)
        raise ValueError("the program requests an operation that is not allowed")

    def receive(self) -> bytes:
        try:
            return super().receive()
        except BaseException:
            self._gone()
            raise

    def check(self, checks: str, given: bytes = b"") -> None:
        """Run the checks with the names that the program defined, and GIVEN.

        Raises their exceptions.
        """
        compiled = compile(checks, "<checks>", "exec", dont_inherit=True)
        named = _names(compiled)
        wanted = (
            None
            if not named.isdisjoint(SEARCHING)
            else {name for name in named if not _is_taken(name)}
        )
        own = self.ask("names", 0, (wanted and list(wanted),)) if wanted != set() else {}
        space: dict[str, Any] = {"__name__": "program"}
        for name, value in own.items():
            # A name that the checks did not ask for could replace a built-in.
            if type(name) is str and not _is_taken(name) and (wanted is None or name in wanted):
                space[name] = _module(name, value)
        if given:
            space["GIVEN"] = given
        exec(compiled, space)  # noqa: S102  (the purpose of this process)


def _is_taken(name: str) -> bool:
    return name.startswith("__") or hasattr(builtins, name)


def _names(code: Any) -> set[str]:
    """Return the names that a code object, including its nested code objects, refers to."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, type(code))]
    return set(code.co_names).union(*inner)


def _module(name: str, value: Any) -> Any:
    """Return this process's own module for a standard library module, else the value itself."""
    if isinstance(value, _Own) and vars(value).get("_module") == name and name in STANDARD_MODULES:
        return __import__(name)
    return value
