"""Reads what _values writes, from a side that is not trusted: that gives a value or raises, and
runs nothing.
"""

from __future__ import annotations

import struct
import sys

from serve_eval.sandbox._values import DEEPEST, NAMED, STANDARD, refuse

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any


class Reader:
    """Reads one message. `stays(number, kind, name)` stands for a value of the writer's,
    `mine(number)` is one of ours, and `error_class(number, names and bases)` makes a class of
    exceptions. `named` are built-ins that may be named.
    """

    def __init__(
        self,
        message: bytes,
        *,
        stays: Callable[[int, str, str], Any],
        mine: Callable[[int], Any],
        error_class: Callable[[int, tuple[Any, ...]], Any],
        known: tuple[Any, ...] = (),
        named: dict[str, Any] | None = None,
    ) -> None:
        self._named = NAMED if named is None else named
        self._message, self._at = message, 0
        self._stays, self._mine, self._error_class = stays, mine, error_class
        self.containers: list[Any] = list(known)

    def read(self, depth: int = 0) -> Any:
        """The next value. Raises ValueError for what is none."""
        if depth > DEEPEST + 20:
            raise ValueError("a message is nested too deeply")
        tag = self._take(1)
        if tag in _SIMPLE:
            return _SIMPLE[tag]
        if tag == b"e":
            self._at -= 1
            return self.error(depth)
        if tag == b"f":
            return struct.unpack("<d", self._take(8))[0]
        if tag == b"c":
            return complex(*struct.unpack("<dd", self._take(16)))
        number = struct.unpack("<I", self._take(4))[0]
        if tag in b"isbBtx":
            return self._of_bytes(tag, self._take(number), depth)
        if tag in b"([{<>rl":
            return self._of_items(tag, number, depth)
        return self._of_number(tag, number, depth)

    def _of_number(self, tag: bytes, number: int, depth: int) -> Any:
        """Something that a side has already, or that stays with the writer."""
        if tag == b"@":
            return self.containers[number]
        if tag == b"R":
            return self._mine(number)
        if tag == b"O":
            kind, name = self.read(depth + 1), self.read(depth + 1)
            return self._stays(number, str(kind), str(name))
        if tag == b"E":
            return self._error_class(number, self._a(tuple, depth))
        raise ValueError("a message of an unknown kind")

    def refill(self, container: Any) -> None:
        """Puts what comes next in the place of what is in a container. One that holds just that is
        left alone: somebody may go through it, or know what is in it by `is`.
        """
        tag, number = self._take(1), struct.unpack("<I", self._take(4))[0]
        if tag != _TAGS[type(container)]:
            raise ValueError("a container has become another")
        self._fill(container, number, 0)

    def _take(self, size: int) -> bytes:
        piece = self._message[self._at : self._at + size]
        if len(piece) != size:
            raise ValueError("a message ends too early")
        self._at += size
        return piece

    def _a(self, kind: type[Any], depth: int) -> Any:
        value = self.read(depth + 1)
        if type(value) is not kind:
            raise ValueError(f"a message has no {kind.__name__} where one belongs")
        return value

    def _of_bytes(self, tag: bytes, content: bytes, depth: int) -> Any:
        if tag == b"i":
            return int.from_bytes(content, "little", signed=True)
        if tag == b"b":
            return content
        if tag == b"B":
            self.containers.append(bytearray(content))
            return self.containers[-1]
        text = content.decode("utf-8", "surrogatepass")
        if tag == b"s":
            return text
        if tag == b"t":
            return self._named[text]
        module, _ = STANDARD[text]
        __import__(module)
        kind, made = getattr(sys.modules[module], text), self.read(depth + 1)
        if text == "timedelta":
            return kind(*made)
        return kind.fromisoformat(made) if module == "datetime" else kind(made)

    def _of_items(self, tag: bytes, number: int, depth: int) -> Any:
        if tag in b"(>rl":
            if number > len(self._message):
                raise ValueError("a message ends too early")
            items = [self.read(depth + 1) for _ in range(number)]
            return (
                {b"(": tuple, b">": frozenset}[tag](items)
                if tag in b"(>"
                else {b"r": range, b"l": slice}[tag](*items)
            )
        container = {b"[": list, b"{": dict, b"<": set}[tag]()
        self.containers.append(container)
        self._fill(container, number, depth)
        return container

    def _fill(self, container: Any, number: int, depth: int) -> None:
        if type(container) is bytearray:
            container[:] = self._take(number)
            return
        if number > len(self._message):
            raise ValueError("a message ends too early")
        items = [self.read(depth + 1) for _ in range(number)]
        if _holds(container, items):
            return
        container.clear()
        if type(container) is list:
            container.extend(items)
        elif type(container) is dict:
            container.update(zip(items[::2], items[1::2]))  # noqa: B905  (older interpreters)
        else:
            container.update(items)

    def error(self, depth: int = 0) -> BaseException:
        """The exception that comes next. Raises ValueError for what is none."""
        if self._take(1) != b"e":
            raise ValueError("a message has no exception where one belongs")
        kind = self.read(depth + 1)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError("a message raises what is no exception")
        args, attributes, text = self._a(tuple, depth)
        args = args if type(args) is tuple else (text,)
        try:
            made = kind(*args)
        except Exception:
            made = kind.__new__(kind)
            made.args = args
        if type(attributes) is dict and all(type(name) is str for name in attributes):
            vars(made).update(attributes)
        if hasattr(kind, "_told"):
            vars(made)["_told"] = text
        return made


def _holds(container: Any, items: list[Any]) -> bool:
    """Whether these are the items of a container already."""
    if type(container) is set:
        held = {(type(one), one) for one in container}
        return len(held) == len(items) and all((type(one), one) in held for one in items)
    mine = (
        container
        if type(container) is list
        else [part for item in container.items() for part in item]
    )
    return len(mine) == len(items) and all(map(_alike, mine, items))


def _alike(one: Any, other: Any) -> bool:
    """Whether two values cannot be told apart but by `is`. Asks nothing of the writer's values."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_alike, one, other))
    if type(one) in (float, complex):
        return repr(one) == repr(other)  # so that 0.0 is not -0.0, and a NaN is itself
    return type(one) in (int, str, bytes, range) and bool(one == other)


_SIMPLE = {b"N": None, b"T": True, b"F": False}
_TAGS: dict[type[Any], bytes] = {list: b"[", dict: b"{", set: b"<", bytearray: b"B"}


def from_plain(message: bytes) -> Any:
    """Built-ins out of bytes that we wrote ourselves."""
    return Reader(message, stays=refuse, mine=refuse, error_class=refuse).read()
