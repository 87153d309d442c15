"""Find and load code of users within a scope, which also keeps what is costly to read.

A command opens a scope, and each run opens one within it. So two runs in one process do not see
each other's folders, also when they take turns: a scope belongs to a task of asyncio, or to a
thread, and to what these start.
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
    """Code of others that is run: where it comes from, and the checksum of its file together with
    the files next to it that it may share with others (`_*.py`).
    """

    origin: str
    sha256: str


class Scope:
    """Hold the included folders, the loaded code by kind and name, and what is `kept`, by its owner
    and arguments.

    It starts with those of `outer`, the scope around it. What is `shared` is one for all scopes
    within the outermost: runs of one command that take turns have it in common.
    """

    def __init__(self, outer: Scope | None) -> None:
        self.folders: list[Path] = [] if outer is None else list(outer.folders)
        self.loaded: dict[str, Loaded] = {} if outer is None else dict(outer.loaded)
        self.kept: dict[tuple[object, ...], Any] = {} if outer is None else dict(outer.kept)
        self.shared: dict[tuple[object, ...], Any] = {} if outer is None else outer.shared


_scope: ContextVar[Scope | None] = ContextVar("serve_eval.plugins.scope", default=None)


def current() -> Scope | None:
    """Return the innermost scope that is open."""
    return _scope.get()


def open_scope() -> Scope:
    """Return the innermost scope, opened for the rest of this task or thread where there is
    none.
    """
    found = _scope.get()
    if found is None:
        _scope.set(found := Scope(None))
    return found


def keep_in_scope(function: Callable[P, T]) -> Callable[P, T]:
    """Call a function once in a scope for the same arguments, which have a hash and no names."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        kept, key = open_scope().kept, (call, *args)
        if key not in kept:
            kept[key] = function(*args, **options)
        return cast("T", kept[key])

    return call


@contextmanager
def scope(*, join: bool = False) -> Iterator[None]:
    """Forget after the block what is included and loaded in it. With `join`, a scope that is open
    is used instead.
    """
    outer = _scope.get()
    if join and outer is not None:
        yield
        return
    token = _scope.set(Scope(outer))
    try:
        yield
    finally:
        _scope.reset(token)


def with_scope(function: Callable[P, T]) -> Callable[P, T]:
    """Give each call of a function, or of a coroutine function, a scope of its own."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def await_scoped(*args: P.args, **options: P.kwargs) -> Any:
            with scope():
                return await function(*args, **options)

        return cast("Callable[P, T]", await_scoped)

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        with scope():
            return function(*args, **options)

    return call
