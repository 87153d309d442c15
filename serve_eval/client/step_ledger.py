"""Record which answers certainly belong to their requests, for each connection."""

from __future__ import annotations

from typing import Protocol

from serve_eval.client.channel import Channel

MOST_OUT = 2
"""From this number of connections out of step, each request gets a connection of its own."""


class StepListener(Protocol):
    """Receives proofs and strays, and can take answers back.

    `proven` gives the number of a connection's turns that were proven in step. `out_of_step` names
    a connection that is out of step: all its answers after the proven ones, except the first, may
    belong to other requests.
    """

    def proven(self, connection: int, turns: int) -> None: ...

    def out_of_step(self, connection: int, why: str) -> None: ...


class StepLedger:
    """Records proofs and strays.

    `keeps` says whether connections serve several requests. It is false without a `listener`, which
    alone can take answers back, and in `alone` mode. Each request then has a connection of its own,
    whose first reply always belongs to it. `out` counts the connections that were out of step.
    """

    def __init__(self) -> None:
        self.listener: StepListener | None = None
        self.alone = self.keeps = False
        self.out = 0

    def listen(self, listener: StepListener | None) -> None:
        """Set the listener that can take answers back."""
        self.listener = listener
        self.keeps = listener is not None and not self.alone

    def go_alone(self) -> None:
        """Give each request a connection of its own from now on."""
        self.alone, self.keeps = True, False

    def prove(self, channel: Channel, turns: int) -> None:
        """Note that the first `turns` replies of a connection were in step."""
        channel.proven = turns
        if turns > 1 and self.listener is not None:
            self.listener.proven(channel.number, turns)

    def prove_next(self, channel: Channel) -> None:
        """Note that the reply to the current request named it."""
        if channel.turns > 1 and channel.turns > channel.proven:
            self.prove(channel, channel.turns)
        channel.proven = channel.turns + 1

    def stray(self, channel: Channel, why: str) -> None:
        """Note that a connection is out of step."""
        if channel.out:
            return
        channel.out, channel.usable = True, False
        if self.listener is None or (self.alone and channel.sent == 1):
            # It has no second answer, and is detected again, or known, if it gets one.
            return
        self.out += 1
        if self.out >= MOST_OUT:
            self.go_alone()
        if self.listener is not None:
            self.listener.out_of_step(channel.number, why)
