"""The attempts at one sample, and which of them count. Pure."""

from __future__ import annotations

from serve_eval.client.attempts.outcome import Missed
from serve_eval.schema import Attempt, Failure, FailureKind


class Tries:
    """What was tried so far. Of the attempts `uncounted` do not count, `lost` were lost when a
    server ended.

    `stream` and `fresh` are how the next attempt is made; `missed` is what the last one came to.
    """

    __slots__ = ("attempts", "fresh", "lost", "missed", "most", "once", "stream", "uncounted")

    def __init__(self, *, most: int, once: bool, stream: bool) -> None:
        self.most, self.once, self.stream = most, once, stream
        self.attempts: list[Attempt] = []
        self.missed: Missed | None = None
        self.uncounted = self.lost = 0
        self.fresh = False

    def again_at_once(self, missed: Missed) -> bool:
        """Return whether the next attempt costs nothing: without streaming, or on a new
        connection.
        """
        self.fresh = missed.stale
        if missed.lost_stream and self.stream:
            self.stream = False
            return True
        self.uncounted += self.fresh
        return self.fresh

    def may_be_outage(self, missed: Missed) -> bool:
        """Return whether the end of a server would excuse the last attempt."""
        gone = missed.kind is FailureKind.DISCONNECTED and missed.retryable
        return gone and not self.once and (missed.refused or self.lost < self.most)

    def excuse(self, missed: Missed) -> None:
        """The last attempt does not count: no server listened."""
        self.uncounted += 1
        self.lost += not missed.refused

    @property
    def counted(self) -> int:
        """Return the number of attempts that count."""
        return len(self.attempts) - self.uncounted

    def over(self, missed: Missed) -> bool:
        """Return whether no further attempt may be made."""
        return self.once or not missed.retryable or self.counted >= self.most

    def out_of_time(self, limit: str) -> None:
        """Note that the time of the sample is over."""
        if self.missed is not None:
            self.missed = self.missed.append_note(f"gave up after {limit}")
        else:
            status = self.attempts[-1].status if self.attempts else None
            self.missed = Missed(FailureKind.TIMEOUT, f"no answer within {limit}", status=status)

    def failure(self) -> Failure:
        """Return the end of a sample whose last attempt missed."""
        missed = self.missed
        assert missed is not None
        return Failure(
            kind=missed.kind,
            message=str(missed),
            status=missed.status,
            retryable=missed.retryable,
            attempts=tuple(self.attempts),
        )
