"""Notices that an endpoint as a whole is gone, or refuses what it is asked, before a long run is spent on it."""

from __future__ import annotations

from collections import Counter

from serve_eval.errors import EndpointError
from serve_eval.schema import Failure, FailureKind, Response

DEAD_AFTER = 16
"""So many samples in a row that fail the same way, from the start or in a LASTING way, and the endpoint is given up."""
RATE_AFTER = 50
"""Finished samples from which on the error rate counts."""
LASTING = (FailureKind.DISCONNECTED, FailureKind.TIMEOUT)


class Watch:
    """Sees the result of every sample of a session. `answered` is the number that the run had before: the error rate is
    the run's, since what failed for good comes first when a run goes on."""

    def __init__(self, *, answered: int, max_error_rate: float = 0.10) -> None:
        self._answered, self._max_error_rate = answered > 0, max_error_rate
        self._row, self._last = 0, ("", 0)
        self._finished, self._failed = answered, 0
        self._causes: Counter[tuple[str, int]] = Counter()
        self._messages: dict[tuple[str, int], str] = {}

    def see(self, result: Response | Failure) -> None:
        """Raises EndpointError after DEAD_AFTER equal failures in a row (at the start of any kind, later of lost
        connections and timeouts), and when more than `max_error_rate` of at least RATE_AFTER samples failed."""
        self._finished += 1
        if isinstance(result, Response):
            self._answered, self._row = True, 0
            return
        self._failed += 1
        kind = (result.kind.value, result.status or 0)
        self._causes[kind] += 1
        self._messages[kind] = result.message
        self._row = self._row + 1 if kind == self._last else 1
        self._last = kind
        if self._row >= DEAD_AFTER and (not self._answered or result.kind in LASTING):
            raise EndpointError(
                f"the endpoint {'stopped answering' if self._answered else 'refuses every request'}: "
                f"{self._row} samples in a row failed, the last with: {result.message}",
                hint=_hint(kind[1]),
            )
        if self._finished >= RATE_AFTER and self._failed > self._max_error_rate * self._finished:
            cause, count = self._causes.most_common(1)[0]
            raise EndpointError(
                f"{self._failed} of {self._finished} samples failed, more than the {self._max_error_rate:.0%} that "
                f"--max-error-rate allows; {count} of them as this one: {self._messages[cause]}",
                hint=_hint(cause[1]),
            )


def _hint(status: int) -> str:
    if status in (429, 503):
        return "It refuses the load: go on with --concurrency auto, with fewer in flight, or with --rate-limit."
    return "Answers that were had are kept: go on when the cause is mended."
