"""Judge each attempt at a sample: an answer, a failure, or one more try."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from datetime import UTC, datetime

import msgspec

from serve_eval.client.attempts import liveness
from serve_eval.client.transport import (
    CannotConnect,
    CertificateRefused,
    Disconnected,
    ProxyRefused,
)
from serve_eval.client.wire_format import logprobs, refusal, wire
from serve_eval.client.wire_format.bodies import Said
from serve_eval.client.wire_format.reply import Reply
from serve_eval.client.wire_format.response_head import read_retry_after
from serve_eval.masking import Masking
from serve_eval.schema import Attempt, Failure, FailureKind, LostAnswer, Request, Route


class Missed(Exception):
    """An attempt that gave no answer.

    `lost_stream`: the stream was empty, and the answer may come without streaming. `refused`:
    possibly no server listens. `stale`: a reused connection is to blame. `starting`: the endpoint
    reported that it is still starting. `refused_early`: the server refused the request before it
    generated anything. `quota`: it named the time after which it takes requests again.
    """

    def __init__(
        self,
        kind: FailureKind,
        message: str,
        *,
        status: int | None = None,
        retryable: bool = True,
        retry_after: str | None = None,
        lost_stream: bool = False,
        refused: bool = False,
        stale: bool = False,
        starting: bool = False,
        refused_early: bool = False,
        quota: bool = False,
    ) -> None:
        super().__init__(message)
        self.kind, self.status = kind, status
        self.retryable, self.retry_after = retryable, retry_after
        self.lost_stream, self.stale = lost_stream, stale
        self.refused, self.starting = refused, starting
        self.refused_early, self.quota = refused_early, quota

    def append_note(self, note: str) -> Missed:
        """Return the same outcome with a note after its message."""
        return Missed(self.kind, f"{self} ({note})", status=self.status, retryable=self.retryable)

    def to_failure(self, attempts: Sequence[Attempt] = ()) -> Failure:
        """Return the failure of a request whose last attempt this was."""
        return Failure(
            kind=self.kind,
            message=str(self),
            status=self.status,
            retryable=self.retryable,
            attempts=tuple(attempts),
        )


class OutcomeReader:
    """Reads replies and errors. Masks received text before any of it is cut or quoted."""

    def __init__(self, masking: Masking, connect_timeout_s: float) -> None:
        self._masking, self._connect_timeout_s = masking, connect_timeout_s

    def read_answer(self, reply: Reply, request: Request) -> Said:
        """Return the answer in a reply. Raises Missed if it holds none."""
        if reply.error is not None:
            raise self.of_error(reply.error)
        if reply.status >= 300:
            raise self._of_status(reply)
        try:
            if request.prompt_logprobs:
                said = logprobs.decode(reply.content, reply.content_type, str(request.prompt))
            elif reply.route is Route.RESPONSES:
                said = self._read_responses(reply, request)
            elif reply.stream is None:
                return wire.decode(reply.content, reply.content_type)
            else:
                said = reply.stream.finish()
        except refusal.InvalidResponse as error:
            raise self.of_error(error) from error
        # A secret may be spread over the pieces of a stream or the tokens of a prompt.
        return self._masking.value(said) if self._masking else said

    def _read_responses(self, reply: Reply, request: Request) -> Said:
        from serve_eval.client.wire_format import responses  # few runs need it

        said = (
            responses.decode(reply.content, reply.content_type)
            if reply.stream is None
            else reply.stream.finish()
        )
        return responses.settle(said, request.sampling)

    def _of_status(self, reply: Reply) -> Missed:
        status = reply.status
        if status < 400:
            return Missed(
                FailureKind.HTTP_ERROR,
                f"HTTP {status}: a redirect, which is not followed",
                status=status,
                retryable=False,
                refused_early=True,
            )
        message = self.describe_body(reply.content)
        return Missed(
            FailureKind.HTTP_ERROR,
            f"HTTP {status}: {liveness.SAID}" if reply.starting else f"HTTP {status}: {message}",
            retryable=worth_retrying(status, message),
            retry_after=reply.retry_after,
            starting=reply.starting,
            refused_early=is_refused_early(status, reply.retry_after),
            quota=status == 429 and reply.pause_s is not None,
        )

    def of_error(self, error: Exception) -> Missed:
        """Return the outcome of an attempt that ended with an error, before or after sending."""
        if isinstance(error, ProxyRefused):
            again = worth_retrying(error.status, "")
            return Missed(FailureKind.HTTP_ERROR, str(error), status=error.status, retryable=again)
        if isinstance(error, CannotConnect):
            message = self.brief(str(error))
            return Missed(
                FailureKind.DISCONNECTED, message, retryable=error.may_pass, refused=error.refused
            )
        if isinstance(error, CertificateRefused):
            return Missed(FailureKind.DISCONNECTED, self.brief(str(error)), retryable=False)
        told = (
            error.describe(self._masking.message)
            if isinstance(error, refusal.InvalidResponse)
            else str(error)
        )
        return Missed(
            (
                FailureKind.DISCONNECTED
                if isinstance(error, Disconnected)
                else FailureKind.INVALID_RESPONSE
            ),
            self.brief(told),
            lost_stream=isinstance(error, refusal.LostStream),
        )

    def not_connected(self) -> Missed:
        """Return the outcome of an attempt whose connection took too long."""
        return Missed(FailureKind.TIMEOUT, f"no connection within {self._connect_timeout_s:g} s")

    def describe_body(self, body: bytes) -> str:
        """Return the message of an error body."""
        return refusal.describe(body, self._masking.message)

    def brief(self, text: str) -> str:
        """Return a message with secrets masked, cut to the maximum length."""
        return self._masking.message(text)[: refusal.MAX_MESSAGE]


BASE_S = 0.5
CAP_S = 30.0
RETRY_AFTER_CAP_S = 120.0

_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
_REFUSALS = frozenset({401, 402, 403, 404, 405, 411, 413, 414, 415, 421, 422, 426, 429, 431})
_WRAPPED_REFUSAL = re.compile(r"\b(400|401|403|404|422), message=|message='Bad Request'")


def worth_retrying(status: int, message: str) -> bool:
    """Return True if an error status may be temporary.

    A disaggregated orchestrator of trtllm-serve passes a worker's refusal, such as a 400, on as a
    500 that quotes it. Such a 500 is not retried.
    """
    return status in _STATUSES and not (status == 500 and is_refused_behind(message))


def is_refused_behind(message: str) -> bool:
    """Return True if the message of a 500 quotes the refusal of a worker."""
    return _WRAPPED_REFUSAL.search(message) is not None


def is_refused_early(status: int, retry_after: str | None) -> bool:
    """Return True if a status refuses a request before anything is generated for it.

    429, a 503 with a Retry-After, and what concerns the form of a request, the key or the route. A
    400 does not: trtllm-serve also answers it if its engine fails while it generates.
    """
    return status in _REFUSALS or (status == 503 and retry_after is not None)


def pause_s(
    attempt: int, retry_after: str | None, rng: random.Random, now: datetime | None = None
) -> float:
    """Return the seconds to wait after the `attempt`-th failure (1, 2, ...).

    The pause grows exponentially, with full jitter (Brooker 2015, "Exponential Backoff And
    Jitter"). A Retry-After, in seconds or as an HTTP date, is honoured up to RETRY_AFTER_CAP_S, and
    the jitter is added to it.
    """
    jitter = rng.uniform(0.0, min(CAP_S, BASE_S * 2 ** (attempt - 1)))
    told = read_retry_after(retry_after, now or datetime.now(UTC))
    return jitter if told is None else min(told, RETRY_AFTER_CAP_S) + jitter


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
        assert self.missed is not None
        return self.missed.to_failure(self.attempts)
