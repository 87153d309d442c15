"""The account of which answers are surely those to their requests, connection by connection."""

from __future__ import annotations

from typing import Protocol

from serve_eval.client.channel import Channel

MOST_OUT = 2
"""From so many connections out of step on, each request has a connection of its own."""


class StepListener(Protocol):
    """Can take answers back. Told how many turns of a connection were proven in step, and that one
    is out of step: all its answers behind the proven ones, but for the first, may be those to other
    requests.
    """

    def proven(self, connection: int, turns: int) -> None: ...

    def out_of_step(self, connection: int, why: str) -> None: ...


class StepLedger:
    """Notes proofs and strays.

    Without a `listener` nobody could take answers back, and each request has a connection of its
    own, whose first reply cannot be another's: `keeps` is false then, and when they go `alone`.

    `out` counts the connections that were out of step.
    """

    def __init__(self) -> None:
        self.listener: StepListener | None = None
        self.alone = self.keeps = False
        self.out = 0

    def listen(self, listener: StepListener | None) -> None:
        """Set the listener that takes answers back from now on."""
        self.listener = listener
        self.keeps = listener is not None and not self.alone

    def go_alone(self) -> None:
        """From now on each request has a connection of its own."""
        self.alone, self.keeps = True, False

    def prove(self, channel: Channel, turns: int) -> None:
        """Note that the first `turns` replies of a connection were in step."""
        channel.proven = turns
        if turns > 1 and self.listener is not None:
            self.listener.proven(channel.number, turns)

    def prove_next(self, channel: Channel) -> None:
        """Note that the reply to the request under way named it."""
        if channel.turns > 1 and channel.turns > channel.proven:
            self.prove(channel, channel.turns)
        channel.proven = channel.turns + 1

    def stray(self, channel: Channel, why: str) -> None:
        """Note that a connection is out of step."""
        if channel.out:
            return
        channel.out, channel.usable = True, False
        if self.listener is None or (self.alone and channel.sent == 1):
            # there is no second answer on it, and it is found again, or known, where there may be
            return
        self.out += 1
        if self.out >= MOST_OUT:
            self.go_alone()
        if self.listener is not None:
            self.listener.out_of_step(channel.number, why)
