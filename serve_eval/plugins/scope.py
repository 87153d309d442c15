"""The scope in which code of others is found and loaded: a command opens one, and each run opens one within it.

So two runs in one process do not see each other's folders, also when they take turns: a scope belongs to a task of
asyncio, or to a thread, and to what these start.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """Code of others that is run: where it comes from, and the checksum of its file together with the files next to it
    that it may share with others (`_*.py`)."""

    origin: str
    sha256: str


class Scope:
    """The folders that were included, and the code that was loaded, by kind and name. It starts with those of `outer`,
    the scope around it."""

    def __init__(self, outer: Scope | None) -> None:
        self.folders: list[Path] = [] if outer is None else list(outer.folders)
        self.loaded: dict[str, Loaded] = {} if outer is None else dict(outer.loaded)


_scope: ContextVar[Scope | None] = ContextVar("serve_eval.plugins.scope", default=None)


def current() -> Scope | None:
    """Return the innermost scope that is open."""
    return _scope.get()


def opened() -> Scope:
    """Return the innermost scope, opened for the rest of this task or thread where there is none."""
    found = _scope.get()
    if found is None:
        _scope.set(found := Scope(None))
    return found


@contextmanager
def scope(*, join: bool = False) -> Iterator[None]:
    """Forget after the block what is included and loaded in it. With `join`, a scope that is open is used instead."""
    outer = _scope.get()
    if join and outer is not None:
        yield
        return
    token = _scope.set(Scope(outer))
    try:
        yield
    finally:
        _scope.reset(token)


def scoped(function: Callable[P, T]) -> Callable[P, T]:
    """Give each call of a function, or of a coroutine function, a scope of its own."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*args: P.args, **options: P.kwargs) -> Any:
            with scope():
                return await function(*args, **options)

        return cast("Callable[P, T]", awaited)

    @functools.wraps(function)
    def called(*args: P.args, **options: P.kwargs) -> T:
        with scope():
            return function(*args, **options)

    return called
