"""Values as bytes between the program and its checker, who do not trust each other: built-ins only, read strictly.

Runs within the sandbox on both sides, and here for the job. Containers keep their identity within a message, so that an
argument which is changed, or given back, is known again. What is no built-in stays where it is and crosses as a number.
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
    for kind in (int, float, bool, complex, str, bytes, bytearray, list, tuple, dict, set, frozenset, range, object)
}
ERRORS = {
    name: kind for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
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
"""Values of the standard library that are rebuilt from what the function makes of them."""
DEEPEST = 200
_MUTABLE = (list, dict, set, bytearray)
_PLAIN: tuple[type[Any], ...] = (int, float, str, bytes, complex, tuple, frozenset)
_BASES: tuple[type[Any], ...] = (*_PLAIN, list, dict, set)

Own = tuple[int, str, str]
"""Number, kind and the name of the type of what stays with its owner."""


class Refused(TypeError):
    """A value that does not cross."""


class Writer:
    """Writes one message. `own` gives (number, kind, type name) of a value that stays here, the number of one that
    belongs to the reader, or the name of a built-in that the reader has too. `known` are containers that it has."""

    def __init__(self, own: Callable[[Any], Own | int | str], known: tuple[Any, ...] = ()) -> None:
        self._own, self.out = own, bytearray()
        self.containers: list[Any] = list(known)
        self._places = {id(one): number for number, one in enumerate(known)}

    def write(self, value: Any, depth: int = 0) -> None:
        """Adds a value. Raises Refused for one that does not cross."""
        kind, out = type(value), self.out
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
        elif depth > DEEPEST:
            raise RecursionError("a value is nested too deeply")
        elif kind in _MUTABLE:
            self._container(value, depth)
        elif kind is tuple or kind is frozenset:
            self._items(b"(" if kind is tuple else b">", list(value), depth)
        elif kind is range:
            self._items(b"r", [value.start, value.stop, value.step], depth)
        else:
            self._other(value, kind, depth)

    def contents(self, value: Any, depth: int = 0) -> None:
        """Adds what is in a container."""
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
        """A tuple of what crosses, and of None for what does not."""
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
    """A value of a class of somebody as the built-in that it is inside, whatever its methods say."""
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


class Reader:
    """Reads one message. `stays(number, kind, name)` stands for a value of the writer's, `mine(number)` is one of ours,
    and `error_class(number, names and bases)` makes a class of exceptions. `named` are built-ins that may be named."""

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
        if tag in b"([{<>r":
            return self._of_items(tag, number, depth)
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
        """Puts what comes next in the place of what is in a container."""
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
        if tag in b"(>r":
            if number > len(self._message):
                raise ValueError("a message ends too early")
            items = [self.read(depth + 1) for _ in range(number)]
            return tuple(items) if tag == b"(" else frozenset(items) if tag == b">" else range(*items)
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


_SIMPLE = {b"N": None, b"T": True, b"F": False}
_TAGS: dict[type[Any], bytes] = {list: b"[", dict: b"{", set: b"<", bytearray: b"B"}


def plain(value: Any) -> bytes:
    """Built-ins as bytes."""
    writer = Writer(_refuse)
    writer.write(value)
    return bytes(writer.out)


def from_plain(message: bytes) -> Any:
    """Built-ins out of bytes that we wrote ourselves."""
    return Reader(message, stays=_refuse, mine=_refuse, error_class=_refuse).read()


def _refuse(*told: Any) -> Any:
    raise Refused(f"{told[0]!r} cannot be written")
