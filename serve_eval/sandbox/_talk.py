"""Exchange requests between the program and its checker over two pipes, one at a time.

Both sides run this code in the sandbox. A request is an operation, its target and its arguments.
The reply is a value or an exception, followed by the content of all containers that both sides
know, as it is after the operation.
"""

from __future__ import annotations

import os
import struct
import sys

from serve_eval.sandbox._reading import Reader
from serve_eval.sandbox._values import NAMED, Own, RefusedValue, Writer

TYPE_CHECKING = False  # typing takes time to import
if TYPE_CHECKING:
    from typing import Any

REQUEST, ANSWER, RAISED, TOO_DEEP = b"Q", b"A", b"X", b"D"


class Over(Exception):
    """The other side closed its pipe."""


class TalkSide:
    """One of the two sides.

    The other side knows a value that stays here by its index in `_things`.
    """

    def __init__(self, source: int, sink: int) -> None:
        self._source, self._sink = source, sink
        self._read, self._write, self._flush = os.read, os.write, sys.stdout.flush
        self._things: list[Any] = []
        self._places: dict[int, int] = {}
        self._classes: dict[int, Any] = {}
        self.shared: tuple[Any, ...] = ()
        self.named: dict[str, Any] = NAMED

    def kind(self, value: Any) -> str:
        """Return the kind of a value that stays here, which determines its operations.

        Raises RefusedValue for a value that the other side must not reach.
        """
        raise NotImplementedError

    def perform(
        self, operation: str, thing: Any, args: tuple[Any, ...], names: dict[str, Any]
    ) -> Any:
        """Do the operation that the other side requests."""
        raise NotImplementedError

    def stand_in(self, number: int, kind: str, name: str) -> Any:
        """Return the stand-in for a value of the other side."""
        raise NotImplementedError

    def number(self, value: Any) -> int | None:
        """Return the number of a value of the other side, or None for a value of this side."""
        raise NotImplementedError

    def ask(
        self,
        operation: str,
        number: int,
        args: tuple[Any, ...] = (),
        names: dict[str, Any] | None = None,
    ) -> Any:
        """Request an operation from the other side, and return its value.

        Raises the exception of the operation, Over if the other side is gone, and ValueError for an
        invalid message.
        """
        writer = Writer(self._own, self.shared)
        for part in (operation, number, args, names or {}):
            writer.write(part)
        self._flush()
        self.send(REQUEST + writer.out)
        while True:
            message = self.receive()
            if message[:1] != REQUEST:
                break
            self.answer(message)
        if message == TOO_DEEP:
            raise RecursionError("the program and its checks call each other too deeply")
        reader = self._reader(message[1:], tuple(writer.containers))
        raised = message[:1] == RAISED
        value = reader.error() if raised else reader.read()
        where = reader.read()
        known = tuple(reader.containers)
        for container in writer.containers:
            reader.refill(container)
        if operation == "names":
            self.shared = known
        if not raised:
            return value
        if where and type(where) is str and hasattr(value, "add_note"):
            value.add_note(where)
        raise value

    def answer(self, message: bytes) -> None:
        """Do a requested operation and send the reply.

        Sends a reply even if the stack is exhausted, since the other side waits for one.
        """
        try:
            told = self._answer(message)
        except RecursionError:
            told = TOO_DEEP
        self.send(told)

    def _answer(self, message: bytes) -> bytes:
        reader = self._reader(message[1:], self.shared)
        operation, number, args, names = (reader.read() for _ in range(4))
        known, where, told = tuple(reader.containers), "", ANSWER
        try:
            value = self.perform(operation, self._things[number], args, names)
            self._flush()
            writer = Writer(self._own, known)
            writer.write(value)
        except BaseException as error:
            told, where = RAISED, _where(error)
            writer = Writer(self._own, known)
            writer.write(error)
        writer.write(where)
        if operation == "names":
            self.shared = tuple(writer.containers)
        for container in known:
            writer.contents(container)
        return told + writer.out

    def send(self, message: bytes | bytearray) -> None:
        """Write one message."""
        left = memoryview(struct.pack("<Q", len(message)) + message)
        while left:
            left = left[self._write(self._sink, left) :]

    def receive(self) -> bytes:
        """Return the next message. Raises Over if there is none."""
        return self._exactly(struct.unpack("<Q", self._exactly(8))[0])

    def _exactly(self, size: int) -> bytes:
        pieces = []
        while size:
            piece = self._read(self._source, min(size, 1 << 20))
            if not piece:
                raise Over
            pieces.append(piece)
            size -= len(piece)
        return b"".join(pieces)

    def _own(self, value: Any) -> Own | int | str:
        theirs = next(
            (number for number, kind in self._classes.items() if kind is value), self.number(value)
        )
        if theirs is not None:
            return theirs
        kind = self.kind(value)
        if kind == "builtin":
            return str(value.__name__)
        place = self._places.get(id(value))
        if place is None:
            place = self._places[id(value)] = len(self._things)
            self._things.append(value)
        return place, kind, str(getattr(value, "__name__", type(value).__name__))

    def _reader(self, message: bytes, known: tuple[Any, ...]) -> Reader:
        return Reader(
            message,
            stays=self.stand_in,
            mine=self._mine,
            error_class=self._error_class,
            known=known,
            named=self.named,
        )

    def _mine(self, number: int) -> Any:
        return self._things[number]

    def _error_class(self, number: int, told: tuple[Any, ...]) -> Any:
        module, name, *bases = told
        if not all(isinstance(base, type) and issubclass(base, BaseException) for base in bases):
            raise ValueError("a class of exceptions has an invalid base")
        found = (
            getattr(sys.modules.get(module), name, None)
            if module.split(".")[0] in STANDARD_MODULES
            else None
        )
        if isinstance(found, type) and issubclass(found, BaseException):
            return found
        if number not in self._classes:
            self._classes[number] = type(
                name, tuple(bases), {"__str__": _text, "_told": "", "__module__": "program"}
            )
        return self._classes[number]


STANDARD_MODULES: frozenset[str] = frozenset(getattr(sys, "stdlib_module_names", ()))


def _text(error: Any) -> str:
    """Return the text of an exception: that of the other side, or its arguments if made here."""
    return error._told or BaseException.__str__(error)


def _where(error: BaseException) -> str:
    """Return the last lines of the program that led to an exception."""
    lines, step = [], error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename == "<program>":
            lines.append(
                f"  in the program, line {step.tb_lineno}, in {step.tb_frame.f_code.co_name}"
            )
        step = step.tb_next
    return "\n".join(lines[-5:])


def build_refusal(value: Any) -> RefusedValue:
    """Return the error for a value of the checks that cannot be an argument."""
    return RefusedValue(
        f"{type(value).__name__}: checks can pass only built-ins, functions and iterators to the"
        " program"
    )
