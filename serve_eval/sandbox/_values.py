"""Encode values as bytes for the program and its checker, which do not trust each other.

This code runs on both sides within the sandbox, and outside it, where the job is encoded. Only
built-ins are encoded. Containers keep their identity within a message, so that the reader
recognises an argument that was changed or returned. Any other value stays where it is and is sent
as a number.
"""

from __future__ import annotations

import builtins
import struct
import sys

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

TYPES: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        int,
        float,
        bool,
        complex,
        str,
        bytes,
        bytearray,
        list,
        tuple,
        dict,
        set,
        frozenset,
        range,
        object,
    )
}
ERRORS = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type) and issubclass(kind, BaseException)
}
NAMED: dict[str, Any] = {**ERRORS, **TYPES}
STANDARD: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "Decimal": ("decimal", str),
    "Fraction": ("fractions", str),
    "date": ("datetime", lambda x: x.isoformat()),
    "time": ("datetime", lambda x: x.isoformat()),
    "datetime": ("datetime", lambda x: x.isoformat()),
    "timedelta": ("datetime", lambda x: (x.days, x.seconds, x.microseconds)),
    "deque": ("collections", list),
}
"""Types of the standard library, each with its module and the function whose result is sent."""
DEEPEST = 200
_MUTABLE = (list, dict, set, bytearray)
_PLAIN: tuple[type[Any], ...] = (int, float, str, bytes, complex, tuple, frozenset)
_BASES: tuple[type[Any], ...] = (*_PLAIN, list, dict, set)

Own = tuple[int, str, str]
"""Number, kind and type name of a value that stays with its owner."""


class RefusedValue(TypeError):
    """A value that cannot be sent."""


class Writer:
    """Writer of one message.

    `own` returns (number, kind, type name) for a value that stays here, the number of a value that
    the reader owns, or the name of a built-in that the reader has too. `known` are containers that
    the reader has.
    """

    def __init__(self, own: Callable[[Any], Own | int | str], known: tuple[Any, ...] = ()) -> None:
        self._own, self.out = own, bytearray()
        self.containers: list[Any] = list(known)
        self._places = {id(one): number for number, one in enumerate(known)}

    def write(self, value: Any, depth: int = 0) -> None:
        """Add a value. Raises RefusedValue for one that cannot be sent."""
        kind = type(value)
        if self._simple(value, kind):
            return
        if depth > DEEPEST:
            raise RecursionError("a value is nested too deeply")
        if kind in _MUTABLE:
            self._container(value, depth)
        elif kind is tuple or kind is frozenset:
            self._items(b"(" if kind is tuple else b">", list(value), depth)
        elif kind is range or kind is slice:
            self._items(
                b"r" if kind is range else b"l", [value.start, value.stop, value.step], depth
            )
        else:
            self._other(value, kind, depth)

    def _simple(self, value: Any, kind: Any) -> bool:
        """Add a value that contains no other value and return True; return False for any other."""
        out = self.out
        if value is None:
            out += b"N"
        elif kind is bool:
            out += b"T" if value else b"F"
        elif kind is int:
            self._bytes(b"i", value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True))
        elif kind is str:
            self._bytes(b"s", value.encode("utf-8", "surrogatepass"))
        elif kind is float:
            out += b"f" + struct.pack("<d", value)
        elif kind is complex:
            out += b"c" + struct.pack("<dd", value.real, value.imag)
        elif kind is bytes:
            self._bytes(b"b", value)
        else:
            return False
        return True

    def contents(self, value: Any, depth: int = 0) -> None:
        """Add the content of a container."""
        if type(value) is bytearray:
            self._bytes(b"B", value)
        elif type(value) is dict:
            self._items(b"{", [part for item in value.items() for part in item], depth)
        else:
            self._items(b"[" if type(value) is list else b"<", list(value), depth)

    def _container(self, value: Any, depth: int) -> None:
        place = self._places.setdefault(id(value), len(self.containers))
        if place < len(self.containers):
            self.out += b"@" + struct.pack("<I", place)
        else:
            self.containers.append(value)
            self.contents(value, depth)

    def _other(self, value: Any, kind: Any, depth: int) -> None:
        name = str(kind.__name__)
        module, make = STANDARD.get(name, ("", repr))
        base = next((one for one in _BASES if issubclass(kind, one)), None)
        if kind is type and NAMED.get(getattr(value, "__name__", ""), 0) is value:
            self._bytes(b"t", value.__name__.encode())
        elif issubclass(kind, type) and issubclass(value, BaseException):
            self._error_class(value, depth)
        elif issubclass(kind, BaseException):
            self._error(value, depth)
        elif kind.__module__ == module and getattr(sys.modules[module], name, None) is kind:
            self._bytes(b"x", name.encode())
            self.write(make(value), depth + 1)
        elif base in _PLAIN or (base is not None and kind.__module__ != "program"):
            assert base is not None
            self.write(_content(base, value), depth + 1)
        else:
            self._stays(self._own(value))

    def _stays(self, own: Own | int | str) -> None:
        if isinstance(own, str):
            return self._bytes(b"t", own.encode())
        if isinstance(own, int):
            self.out += b"R" + struct.pack("<I", own)
            return None
        number, kind, name = own
        self.out += b"O" + struct.pack("<I", number)
        self._bytes(b"s", kind.encode())
        return self._bytes(b"s", name.encode("utf-8", "replace"))

    def _error_class(self, value: type[BaseException], depth: int) -> None:
        if ERRORS.get(value.__name__) is value:
            return self._bytes(b"t", value.__name__.encode())
        own = self._own(value)
        if isinstance(own, (int, str)):
            return self._stays(own)
        self.out += b"E" + struct.pack("<I", own[0])
        bases = [base for base in value.__bases__ if issubclass(base, BaseException)]
        return self._items(b"(", [value.__module__, value.__name__, *bases], depth)

    def _error(self, value: BaseException, depth: int) -> None:
        self.out += b"e"
        self._error_class(type(value), depth)
        try:
            text = str(value)
        except Exception:
            text = ""
        self._loosely([value.args, dict(vars(value)), text], depth)

    def _loosely(self, parts: list[Any], depth: int) -> None:
        """Add a tuple of values, with None for each value that cannot be sent."""
        self.out += b"(" + struct.pack("<I", len(parts))
        for part in parts:
            before, containers = len(self.out), len(self.containers)
            try:
                self.write(part, depth + 1)
            except Exception:
                del self.out[before:]
                for gone in self.containers[containers:]:
                    del self._places[id(gone)]
                del self.containers[containers:]
                self.out += b"N"

    def _items(self, tag: bytes, items: list[Any], depth: int) -> None:
        self.out += tag + struct.pack("<I", len(items))
        for item in items:
            self.write(item, depth + 1)

    def _bytes(self, tag: bytes, content: bytes | bytearray) -> None:
        self.out += tag + struct.pack("<I", len(content)) + content


def _content(base: type[Any], value: Any) -> Any:
    """Return an instance of a built-in's subclass as that built-in, without calling its methods."""
    if base is tuple or base is list:
        return base(base.__iter__(value))
    if base is frozenset or base is set:
        return base(base.__iter__(value))
    if base is dict:
        return dict(dict.items(value))
    if base is int:
        return int.__add__(value, 0)
    if base is float:
        return float.__float__(value)
    if base is complex:
        return complex.__add__(value, 0)
    return base.__getitem__(value, slice(None)) if base is bytes else str.__str__(value)


def plain(value: Any) -> bytes:
    """Return built-ins as bytes."""
    writer = Writer(refuse)
    writer.write(value)
    return bytes(writer.out)


def refuse(*told: Any) -> Any:
    """Raise RefusedValue for a value that is not a built-in."""
    raise RefusedValue(f"{told[0]!r} cannot be written")
