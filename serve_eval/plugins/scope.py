"""Find and load user code within a scope, which also caches what is slow to read.

A command opens a scope, and each run opens one within it. Two runs in one process therefore do not
see each other's folders, even if they take turns: a scope belongs to an asyncio task or a thread,
and to the tasks that these start.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

from serve_eval.frozen import freeze

P = ParamSpec("P")
T = TypeVar("T")


@freeze
class Loaded:
    """External code that was run: its origin and checksum.

    The checksum covers its file and the shared files next to it (`_*.py`).
    """

    origin: str
    sha256: str


class Scope:
    """The included folders, the loaded code by kind and name, and cached results.

    `withheld` has the folders of saved plans whose code does not run, since this user has not named
    them again. `kept` holds results by their function and arguments. A scope starts with the
    content of `outer`, the scope around it. All scopes within the outermost have one `shared`, so
    that runs of one command that take turns share it.
    """

    def __init__(self, outer: Scope | None) -> None:
        self.folders: list[Path] = [] if outer is None else list(outer.folders)
        self.withheld: list[str] = [] if outer is None else list(outer.withheld)
        self.loaded: dict[str, Loaded] = {} if outer is None else dict(outer.loaded)
        self.kept: dict[tuple[object, ...], Any] = {} if outer is None else dict(outer.kept)
        self.shared: dict[tuple[object, ...], Any] = {} if outer is None else outer.shared


_scope: ContextVar[Scope | None] = ContextVar("serve_eval.plugins.scope", default=None)


def current() -> Scope | None:
    """Return the innermost open scope, or None."""
    return _scope.get()


def open_scope() -> Scope:
    """Return the innermost scope; if there is none, open one for this task or thread."""
    found = _scope.get()
    if found is None:
        _scope.set(found := Scope(None))
    return found


def keep_in_scope(function: Callable[P, T]) -> Callable[P, T]:
    """Cache the results of a function in the scope, by positional, hashable arguments."""

    @functools.wraps(function)
    def call(*args: P.args, **options: P.kwargs) -> T:
        kept, key = open_scope().kept, (call, *args)
        if key not in kept:
            kept[key] = function(*args, **options)
        return cast("T", kept[key])

    return call


@contextmanager
def scope(*, join: bool = False) -> Iterator[None]:
    """Forget after the block what is included and loaded in it.

    With `join`, an open scope is used instead.
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
    """Give each call of a function or coroutine function a new scope."""
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
