"""Hold the state of an aiohttp connection and of one request on it."""

from __future__ import annotations

import asyncio

from aiohttp.client_proto import ResponseHandler


class SharedConnection:
    """The state that all requests on a connection share."""

    __slots__ = (
        "__weakref__",
        "ends_unproven",
        "last_id",
        "last_text",
        "number",
        "out",
        "proven",
        "sent",
        "usable",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.sent = self.proven = self.last_text = 0
        self.last_id: str | None = None
        self.out, self.ends_unproven, self.usable = False, False, True


class AiohttpChannel:
    """One request on a connection.

    aiohttp gives a connection to the next request before the client has judged the current answer.
    `turns` and `sent` are therefore those at the time of sending.
    """

    __slots__ = (
        "_protocol",
        "_shared",
        "_task",
        "number",
        "round_trip_s",
        "sent",
        "turns",
    )

    def __init__(
        self, shared: SharedConnection, protocol: ResponseHandler, task: asyncio.Task[None]
    ) -> None:
        self._shared, self._protocol, self._task = shared, protocol, task
        self.number, self.turns = shared.number, shared.sent
        shared.sent += 1
        self.sent, self.round_trip_s = shared.sent, 0.0

    def end(self) -> None:
        """End the connection, unless another request already uses it."""
        self._task.cancel()
        if self._shared.sent == self.sent:
            self._protocol.close()

    @property
    def out(self) -> bool:
        return self._shared.out

    @out.setter
    def out(self, out: bool) -> None:
        self._shared.out = out

    @property
    def usable(self) -> bool:
        return self._shared.usable

    @usable.setter
    def usable(self, usable: bool) -> None:
        self._shared.usable = usable

    @property
    def ends_unproven(self) -> bool:
        return self._shared.ends_unproven

    @ends_unproven.setter
    def ends_unproven(self, ends_unproven: bool) -> None:
        self._shared.ends_unproven = ends_unproven

    @property
    def proven(self) -> int:
        return self._shared.proven

    @proven.setter
    def proven(self, turns: int) -> None:
        self._shared.proven = max(turns, self._shared.proven)

    @property
    def last_id(self) -> str | None:
        return self._shared.last_id

    @last_id.setter
    def last_id(self, name: str | None) -> None:
        self._shared.last_id = name

    @property
    def last_text(self) -> int:
        return self._shared.last_text

    @last_text.setter
    def last_text(self, text: int) -> None:
        self._shared.last_text = text
