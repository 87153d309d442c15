"""Collect tool calls from an answer or from the pieces of a stream. Pure."""

from __future__ import annotations

import msgspec

from serve_eval.schema import ToolCall

_encode = msgspec.json.Encoder().encode

NO_ID, REPEATED_ID, NO_NAME = "a call has no id", "two calls have one id", "a call has no name"
SHARED_INDEX = "pieces with one index have two ids"
BAD_INDEX = "the indexes of the pieces are not 0, 1, 2, ..."
"""Faults in the frame of the calls, by which clients join their pieces."""


class ToolCalls:
    """Assembles calls in the order of their first pieces.

    A piece belongs to the call of its `index`. Without an index, a piece with an `id` or a name
    begins a call, and any other continues the last one. Anything that is not a call is ignored.
    `streamed`: the pieces need an index.
    """

    def __init__(self, *, streamed: bool = False) -> None:
        self._streamed = streamed
        self._names: dict[object, str] = {}
        self._arguments: dict[object, list[str]] = {}
        self._ids: dict[object, str] = {}
        self._shared = False

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, told: object) -> None:
        """Take the `tool_calls` of a message or of a piece of one."""
        for place, one in enumerate(told if isinstance(told, list) else ()):
            function = one.get("function") if isinstance(one, dict) else None
            if not isinstance(function, dict):
                continue
            name, arguments = function.get("name"), function.get("arguments")
            index = one.get("index")
            if not isinstance(index, int):
                begins = bool(one.get("id") or name) or not self._names
                index = ("call", len(self._names), place) if begins else next(reversed(self._names))
            known = self._names.setdefault(index, "")
            if not known and isinstance(name, str):
                self._names[index] = name
            self._note_id(index, one.get("id"))
            if isinstance(arguments, str):
                self._arguments.setdefault(index, []).append(arguments)
            elif arguments is not None:
                self._arguments[index] = [_encode(arguments).decode()]

    def whole(self) -> tuple[ToolCall, ...]:
        """Return the calls that have a name."""
        return tuple(
            ToolCall(name, "".join(self._arguments.get(index, ())))
            for index, name in self._names.items()
            if name
        )

    def faults(self) -> tuple[str, ...]:
        """Return what is wrong with the ids, the indexes and the names of the calls."""
        ids = [self._ids.get(index, "") for index in self._names]
        given = [one for one in ids if one]
        found = {
            NO_ID: len(given) < len(ids),
            REPEATED_ID: len(set(given)) < len(given),
            SHARED_INDEX: self._shared,
            NO_NAME: not all(self._names.values()),
            BAD_INDEX: self._streamed and [*self._names] != [*range(len(self._names))],
        }
        return tuple(fault for fault, is_there in found.items() if is_there)

    def _note_id(self, index: object, told: object) -> None:
        if isinstance(told, str) and told:
            self._shared |= self._ids.setdefault(index, told) != told
