"""Stop a run early if the endpoint is gone or refuses every request.

Samples are counted in the order of their starts. Refusals come back immediately and answers take
time, so the first results of a healthy endpoint may all be failures.
"""

from __future__ import annotations

import math
from collections import Counter

from serve_eval.errors import EndpointError
from serve_eval.schema import Failure, FailureKind, Response

DEAD_AFTER = 16
"""Number of samples started in a row that must fail the same way before the endpoint is given up.
They must be the first samples of the run, or fail in a LASTING way."""
REFUSED_AFTER = 50
"""The same number for the first samples of a run if each is refused with a status in PROMPTS."""
PROMPTS = (400, 413, 422)
"""Statuses that concern a single prompt, such as one that is too long, rather than the endpoint. A
500 that quotes one of them counts as well."""
RATE_AFTER = 50
"""Number of samples from which the error rate is checked."""
CHANCE = 3.0
"""Number of standard errors by which failures among the first samples may exceed the rate, since
early failures come in clusters."""
LASTING = (FailureKind.DISCONNECTED, FailureKind.TIMEOUT)


class CircuitBreaker:
    """Follow the start and the result of every sample of a session.

    `answered` is the number of answers from earlier sessions. The error rate is that of the whole
    run, since a resumed run asks the failed samples first. `planned` is the number of all samples
    of the run, if known.
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
        """Return the number, from 0, of a sample that is sent now."""
        self._begun, self._of_the_run = self._begun + 1, self._of_the_run + 1
        return self._begun - 1

    def give_up(self) -> None:
        """Remove a started sample that was given up and will have no result."""
        self._of_the_run -= 1

    def see(self, number: int, result: Response | Failure) -> None:
        """Take the result of the sample with the number that `start` returned.

        Raises EndpointError in two cases. The first is DEAD_AFTER equal failures of samples started
        in a row: of any kind for the first samples of a run, else only lost connections and
        timeouts. Refusals of single prompts need REFUSED_AFTER. The second is that more than
        `max_error_rate` of at least RATE_AFTER samples failed. The share is either that of the
        started samples, where those in flight count as answered and CHANCE is allowed for, or that
        of all planned samples.
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
        )  # an orchestrator of the 1.2 versions quotes a worker's 400
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
        of_planned = self._planned >= RATE_AFTER and failed / self._planned > rate
        if not (of_started or of_planned):
            return
        cause, count = Counter(self._kinds.values()).most_common(1)[0]
        raise EndpointError(
            f"{failed} of {started} samples failed, more than the allowed {rate:.0%};"
            f" {count} of them with: {self._messages[cause]}",
            hint=f"{_hint(cause[1])} --set limits.max_error_rate=SHARE allows more.",
        )


def _hint(status: int) -> str:
    if status in (429, 503):
        return (
            "The endpoint refuses the load. Resume with --concurrency auto, a lower --concurrency,"
            " or --set limits.rate_limit=R."
        )
    return "Fix the cause, then resume the run."
