"""Count the attempts at one sample. Pure."""

from __future__ import annotations

import msgspec

from serve_eval.client.attempts.outcome import Missed
from serve_eval.schema import Attempt, Failure, FailureKind, LostAnswer


class Tries:
    """The attempts so far.

    `uncounted` attempts do not count; `lost` is the number of those lost when a server ended.
    `stream` and `fresh` say how to make the next attempt, and `alone` how to make all of them.
    `missed` is the outcome of the last one. `answered` is the number of answers that the client had
    when the sample was begun, or at the last attempt that a quota refused.
    """

    __slots__ = (
        "alone",
        "answered",
        "attempts",
        "fresh",
        "lost",
        "missed",
        "most",
        "once",
        "stream",
        "uncounted",
    )

    def __init__(self, *, most: int, once: bool, stream: bool, alone: bool, answered: int) -> None:
        self.answered = answered
        self.most, self.once, self.stream, self.alone = most, once, stream, alone
        self.attempts: list[Attempt] = []
        self.missed: Missed | None = None
        self.uncounted = self.lost = 0
        self.fresh = False

    def again_at_once(self, missed: Missed) -> bool:
        """Return True if the next attempt needs no pause: unstreamed, or on a new connection.

        An attempt that a new connection follows is not counted.
        """
        self.fresh = missed.stale
        if missed.lost_stream and self.stream:
            self.stream = False
            return True
        self.uncounted += self.fresh
        return self.fresh

    def may_be_outage(self, missed: Missed) -> bool:
        """Return True if the end of a server would excuse the last attempt."""
        gone = missed.kind is FailureKind.DISCONNECTED and missed.retryable
        return gone and not self.once and (missed.refused or self.lost < self.most)

    def excuse(self, missed: Missed) -> None:
        """Leave the last attempt uncounted: no server listened."""
        if (last := self.attempts[-1]).lost is LostAnswer.ANSWER:
            self.attempts[-1] = msgspec.structs.replace(last, lost=LostAnswer.RESTART)
        self.uncounted += 1
        self.lost += not missed.refused

    def excuse_quota(self, missed: Missed, answered: int) -> bool:
        """Return True, and leave the last attempt uncounted, if a spent quota is the only reason.

        The server named the time of its next answers, and did answer others meanwhile. One that
        refuses everybody is not asked without end.
        """
        excused = missed.quota and not self.once and answered > self.answered
        self.answered, self.uncounted = answered, self.uncounted + excused
        return excused

    @property
    def counted(self) -> int:
        """The number of attempts that count."""
        return len(self.attempts) - self.uncounted

    def over(self, missed: Missed) -> bool:
        """Return True if no further attempt is allowed."""
        return self.once or not missed.retryable or self.counted >= self.most

    def out_of_time(self, limit: str) -> None:
        """Note that the sample's time is over."""
        if self.missed is not None:
            self.missed = self.missed.append_note(f"gave up after {limit}")
        else:
            status = self.attempts[-1].status if self.attempts else None
            self.missed = Missed(FailureKind.TIMEOUT, f"no answer within {limit}", status=status)

    def failure(self) -> Failure:
        """Return the failure of a sample whose last attempt missed."""
        missed = self.missed
        assert missed is not None
        return Failure(
            kind=missed.kind,
            message=str(missed),
            status=missed.status,
            retryable=missed.retryable,
            attempts=tuple(self.attempts),
        )
