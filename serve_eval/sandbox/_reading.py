"""Read messages that `_values` wrote on a side that is not trusted.

Reading returns a value or raises, and never runs code.
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
    """Reader of one message.

    `stays(number, kind, name)` returns a stand-in for a value of the writer, `mine(number)` returns
    one of our values, and `error_class(number, names and bases)` makes a class of exceptions.
    `named` are the built-ins that a message may name.
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
        """Return the next value. Raises ValueError if it is not valid."""
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
        """Return a value that this side already has, or the stand-in for one of the writer's."""
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
        """Replace the content of a container with the next value.

        A container with equal content is left alone, since code may iterate over it or compare its
        items by `is`.
        """
        tag, number = self._take(1), struct.unpack("<I", self._take(4))[0]
        if tag != _TAGS[type(container)]:
            raise ValueError("a container has changed its type")
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
            raise ValueError(f"a message has no {kind.__name__} where one is expected")
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
        """Return the next exception. Raises ValueError if it is not valid."""
        if self._take(1) != b"e":
            raise ValueError("a message has no exception where one is expected")
        kind = self.read(depth + 1)
        if not (isinstance(kind, type) and issubclass(kind, BaseException)):
            raise ValueError("a message raises a value that is not an exception")
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
    """Return True if a container already has these items."""
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
    """Return True if only `is` can tell two values apart. Sends no request to the writer."""
    if one is other:
        return True
    if type(one) is not type(other):
        return False
    if type(one) is tuple:
        return len(one) == len(other) and all(map(_alike, one, other))
    if type(one) in (float, complex):
        return repr(one) == repr(other)  # so that 0.0 differs from -0.0, and NaN equals itself
    return type(one) in (int, str, bytes, range) and bool(one == other)


_SIMPLE = {b"N": None, b"T": True, b"F": False}
_TAGS: dict[type[Any], bytes] = {list: b"[", dict: b"{", set: b"<", bytearray: b"B"}


def from_plain(message: bytes) -> Any:
    """Return built-ins from bytes that we wrote ourselves."""
    return Reader(message, stays=refuse, mine=refuse, error_class=refuse).read()
