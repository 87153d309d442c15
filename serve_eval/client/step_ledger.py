"""Record which answers certainly belong to their requests, by connection and by id."""

from __future__ import annotations

import uuid
from typing import Protocol


class Channel(Protocol):
    """One connection, as the client and the step ledger see it.

    It delivered `turns` whole answers. The first `proven` of them certainly belong to their
    requests. `sent` counts the requests sent on it. `out`: the connection is out of step. `usable`:
    it may take another request. `ends_unproven`: it was reported that some of its answers stay
    unproven. `last_id` and `last_text` describe its last answer (see `Echoes`). `round_trip_s` is
    the time that opening it took, at least a round trip (0: not known).
    """

    number: int
    turns: int
    proven: int
    sent: int
    out: bool
    usable: bool
    ends_unproven: bool
    last_id: str | None
    last_text: int
    round_trip_s: float


ID_CHARACTERS = 36
"""Length of a request id, a UUID. An id that a server shortened names no request."""


class RequestIds:
    """Make ids that begin with `own` and count up; `made` is their number.

    The ids are UUIDs because llama-cpp-python refuses others.
    """

    def __init__(self) -> None:
        self.own, self.made = str(uuid.uuid4())[:-12], 0

    def new(self) -> str:
        """Return the id of the next request."""
        self.made += 1
        return f"{self.own}{self.made:012x}"

    def find_named(self, told: str) -> str | None:
        """Return the id of one of our requests in a reply's text, or None."""
        at = told.find(self.own)
        return None if at < 0 or len(told) < at + ID_CHARACTERS else told[at : at + ID_CHARACTERS]


MOST_OUT = 2
"""From this number of connections out of step, each request gets a connection of its own."""
MOST_ENDS = 3
"""The same for connections that their server ended without notice and before a proof."""

OUT_OF_STEP = "connections get out of step"
NO_NOTICE = "the server ends connections without notice"


class StepListener(Protocol):
    """Receives proofs and strays, and can take answers back.

    `proven` gives the number of a connection's turns that were proven in step. `out_of_step` names
    a connection that is out of step: all its answers after the proven ones, except the first, may
    belong to other requests. `lose_answers` names a connection that ended, so that nothing will
    prove these answers any more (`silent`: its server ended it without notice). With
    `trust_answers` they stay unproven too, up to this number of turns, but need not be asked again.
    """

    def proven(self, connection: int, turns: int) -> None: ...

    def out_of_step(self, connection: int, why: str) -> None: ...

    def lose_answers(self, connection: int, why: str, *, silent: bool) -> None: ...

    def trust_answers(self, connection: int, turns: int) -> None: ...


class StepLedger:
    """Records proofs, strays and ends.

    `keeps` says whether connections serve several requests. It is false without a `listener`, which
    alone can take answers back, and in `alone` mode. Each request then has a connection of its own,
    whose first reply always belongs to it; `why_alone` is the reason. `out` counts the connections
    that were out of step, `ends` those that ended without notice and before a proof. `shown`: a
    proof named its request or listed the models; `in_vain` counts the checks that did not.
    """

    def __init__(self) -> None:
        self.listener: StepListener | None = None
        self.alone = self.keeps = self.shown = False
        self.why_alone = ""
        self.out = self.ends = self.in_vain = 0

    @property
    def unprovable(self) -> bool:
        """True if checks were answered, but never with anything that proves something."""
        return self.in_vain > 0 and not self.shown

    def listen(self, listener: StepListener | None) -> None:
        """Set the listener that can take answers back."""
        self.listener = listener
        self.keeps = listener is not None and not self.alone

    def go_alone(self, why: str) -> None:
        """Give each request a connection of its own from now on."""
        self.why_alone = self.why_alone or why
        self.alone, self.keeps = True, False

    def prove(self, channel: Channel, turns: int) -> None:
        """Note that the first `turns` replies of a connection were in step."""
        channel.proven = turns
        if turns > 1 and self.listener is not None:
            self.listener.proven(channel.number, turns)

    def prove_next(self, channel: Channel) -> None:
        """Note that the reply to the current request named it."""
        self.shown = True
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
            self.go_alone(OUT_OF_STEP)
        if self.listener is not None:
            self.listener.out_of_step(channel.number, why)

    def lose(self, channel: Channel, why: str, *, silent: bool) -> None:
        """Note that a connection ended with answers that no proof covers."""
        if self._settle(channel) and self.listener is not None:
            self.ends += silent
            if self.ends >= MOST_ENDS:
                self.go_alone(NO_NOTICE)
            self.listener.lose_answers(channel.number, why, silent=silent)

    def trust(self, channel: Channel) -> None:
        """Note that a connection ended, and that its unproven answers stand."""
        if self._settle(channel) and self.listener is not None:
            self.listener.trust_answers(channel.number, channel.turns)

    def _settle(self, channel: Channel) -> bool:
        """Return True for the first report that answers of a connection stay unproven."""
        first = not channel.ends_unproven and not channel.out
        channel.ends_unproven = True
        return first
