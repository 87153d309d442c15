"""Notices that an endpoint as a whole is gone, or refuses what it is asked, before a long run is
spent on it.

Samples are counted in the order in which they were started: what is refused comes back at once, and
answers take their time, so that the first results of a healthy endpoint may all be failures.
"""

from __future__ import annotations

import math
from collections import Counter

from serve_eval.errors import EndpointError
from serve_eval.schema import Failure, FailureKind, Response

DEAD_AFTER = 16
"""So many samples started in a row that fail the same way, from the start or in a LASTING way, and
the endpoint is given up."""
REFUSED_AFTER = 50
"""The same for the first samples of a run when each is refused with a status of PROMPTS."""
PROMPTS = (400, 413, 422)
"""Statuses that say something of a prompt, such as that it is too long, and little of the endpoint;
a 500 that quotes one of them says the same."""
RATE_AFTER = 50
"""Samples from which on the error rate counts."""
CHANCE = 3.0
"""By so many standard errors the failures among the first samples may exceed the rate: early ones
come in clusters."""
LASTING = (FailureKind.DISCONNECTED, FailureKind.TIMEOUT)


class CircuitBreaker:
    """Sees the start and the result of every sample of a session.

    `answered` is the number of answers that the run had before: the error rate is the run's, since
    what failed for good comes first when a run goes on. `planned` is the number of all its samples,
    where that is known.
    """

    def __init__(
        self, *, answered: int, planned: int | None = None, max_error_rate: float = 0.10
    ) -> None:
        self._answered, self._max_error_rate = answered > 0, max_error_rate
        self._planned = math.inf if planned is None else planned
        self._begun, self._of_the_run, self._failed = 0, answered, 0
        self._kinds: dict[int, tuple[str, int]] = {}
        self._messages: dict[tuple[str, int], str] = {}

    def start(self) -> int:
        """The number of a sample that is sent now, from 0."""
        self._begun, self._of_the_run = self._begun + 1, self._of_the_run + 1
        return self._begun - 1

    def give_up(self) -> None:
        """A sample that was started was given up, and will have no result."""
        self._of_the_run -= 1

    def see(self, number: int, result: Response | Failure) -> None:
        """Takes the result of the sample that was started as `number`.

        Raises EndpointError after DEAD_AFTER equal failures of samples started in a row (the first
        ones of any kind, later of lost connections and timeouts; of refusals of single prompts
        REFUSED_AFTER), and when more than `max_error_rate` of at least RATE_AFTER samples failed:
        of those that were started, where samples in flight count as answered and CHANCE is allowed
        for, or of all that are planned.
        """
        if isinstance(result, Response):
            self._answered = True
            return
        self._failed += 1
        kind = self._kinds[number] = (result.kind.value, result.status or 0)
        self._messages[kind] = result.message
        self._check_row(number, result)
        self._check_rate()

    def _check_row(self, number: int, failure: Failure) -> None:
        kinds, kind = self._kinds, self._kinds[number]
        wrapped = (
            kind[1] == 500 and not failure.retryable
        )  # an orchestrator of the 1.2 line quotes a worker's 400
        needed = REFUSED_AFTER if kind[1] in PROMPTS or wrapped else DEAD_AFTER
        first = last = number
        while last - first < needed and kinds.get(first - 1) == kind:
            first -= 1
        while last - first < needed and kinds.get(last + 1) == kind:
            last += 1
        row = last - first + 1
        if row >= needed and (failure.kind in LASTING or (first == 0 and not self._answered)):
            raise EndpointError(
                "the endpoint"
                f" {'stopped answering' if self._answered else 'refuses every request'}: {row}"
                f" samples in a row failed, the last with: {failure.message}",
                hint=_hint(kind[1]),
            )

    def _check_rate(self) -> None:
        rate, started, failed = self._max_error_rate, self._of_the_run, self._failed
        surely = rate * started + CHANCE * math.sqrt(rate * (1.0 - rate) * started)
        of_started = started >= RATE_AFTER and failed > surely
        of_planned = self._planned >= RATE_AFTER and failed > rate * self._planned
        if not (of_started or of_planned):
            return
        cause, count = Counter(self._kinds.values()).most_common(1)[0]
        raise EndpointError(
            f"{failed} of {started} samples failed, more than the {rate:.0%} that "
            f"--max-error-rate allows; {count} of them as this one: {self._messages[cause]}",
            hint=_hint(cause[1]),
        )


def _hint(status: int) -> str:
    if status in (429, 503):
        return (
            "It refuses the load: go on with --concurrency auto, with fewer in flight, or with"
            " --rate-limit."
        )
    return "Go on when the cause is mended."
