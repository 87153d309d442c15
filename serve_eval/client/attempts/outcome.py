"""Turn replies and errors into an answer or the reason for a missed attempt."""

from __future__ import annotations

from serve_eval.client.attempts import retry, starting
from serve_eval.client.transport import (
    CannotConnect,
    CertificateRefused,
    Disconnected,
    ProxyRefused,
)
from serve_eval.client.wire_format import logprobs, wire
from serve_eval.client.wire_format.reply import Reply
from serve_eval.client.wire_format.wire import Said
from serve_eval.masking import Masking
from serve_eval.schema import FailureKind, Request


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
        self.kind, self.status, self.retryable, self.retry_after = (
            kind,
            status,
            retryable,
            retry_after,
        )
        self.lost_stream, self.stale, self.refused, self.starting = (
            lost_stream,
            stale,
            refused,
            starting,
        )
        self.refused_early, self.quota = refused_early, quota

    def append_note(self, note: str) -> Missed:
        """Return the same outcome with a note after its message."""
        return Missed(self.kind, f"{self} ({note})", status=self.status, retryable=self.retryable)


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
            elif reply.stream is None:
                return wire.decode(reply.content, reply.content_type)
            else:
                said = reply.stream.finish()
        except wire.InvalidResponse as error:
            raise self.of_error(error) from error
        # A secret may be spread over the pieces of a stream or the tokens of a prompt.
        return self._masking.value(said) if self._masking else said

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
            f"HTTP {status}: {starting.SAID}" if reply.starting else f"HTTP {status}: {message}",
            retryable=retry.worth_retrying(status, message),
            retry_after=reply.retry_after,
            starting=reply.starting,
            refused_early=retry.is_refused_early(status, reply.retry_after),
            quota=status == 429 and reply.pause_s is not None,
        )

    def of_error(self, error: Exception) -> Missed:
        """Return the outcome of an attempt that ended with an error, before or after sending."""
        if isinstance(error, ProxyRefused):
            again = retry.worth_retrying(error.status, "")
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
            if isinstance(error, wire.InvalidResponse)
            else str(error)
        )
        return Missed(
            (
                FailureKind.DISCONNECTED
                if isinstance(error, Disconnected)
                else FailureKind.INVALID_RESPONSE
            ),
            self.brief(told),
            lost_stream=isinstance(error, wire.LostStream),
        )

    def not_connected(self) -> Missed:
        """Return the outcome of an attempt whose connection took too long."""
        return Missed(FailureKind.TIMEOUT, f"no connection within {self._connect_timeout_s:g} s")

    def describe_body(self, body: bytes) -> str:
        """Return the message of an error body."""
        return wire.describe(body, self._masking.message)

    def brief(self, text: str) -> str:
        """Return a message with secrets masked, cut to the maximum length."""
        return self._masking.message(text)[: wire.MAX_MESSAGE]
