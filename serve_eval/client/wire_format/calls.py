"""Calls of tools out of an answer, or out of the pieces of a stream. Pure."""

from __future__ import annotations

import msgspec

from serve_eval.schema import ToolCall

_encode = msgspec.json.Encoder().encode


class ToolCalls:
    """Puts calls together in the order of their first pieces. A piece belongs to the call of its
    `index`; without one, a piece with an `id` or a name begins a call and any other goes on with
    the last. What is no call is passed over, as everything else that an answer may hold beside its
    text.
    """

    def __init__(self) -> None:
        self._names: dict[object, str] = {}
        self._arguments: dict[object, list[str]] = {}

    def __bool__(self) -> bool:
        return bool(self._names)

    def add(self, told: object) -> None:
        """Takes the `tool_calls` of a message, or of a piece of one."""
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
        """The calls that have a name."""
        return tuple(
            ToolCall(name, "".join(self._arguments.get(index, ())))
            for index, name in self._names.items()
            if name
        )
