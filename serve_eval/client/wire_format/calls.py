"""Collect tool calls from an answer or from the pieces of a stream. Pure."""

from __future__ import annotations

import msgspec

from serve_eval.schema import ToolCall

_encode = msgspec.json.Encoder().encode


class ToolCalls:
    """Assembles calls in the order of their first pieces.

    A piece belongs to the call of its `index`. Without an index, a piece with an `id` or a name
    begins a call, and any other continues the last one. Anything that is not a call is ignored.
    """

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._arguments: dict[object, list[str]] = {}

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
