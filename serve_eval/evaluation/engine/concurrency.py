"""Control the number of requests in flight: a fixed number, or what the endpoint can handle.

Pure: callers pass in the times. The automatic number doubles while each doubling adds at least a
fifth to the throughput. If it does not, the number goes back one step, and later tries a quarter
more from time to time. It falls by 30 % after a refusal for load (429, 503), a timeout, answers
that take half of the time limit, or a throughput that fell by 30 %. It is not the default: other
batch sizes change the numerics of a model, so a regression check keeps the number fixed.
"""

from __future__ import annotations

from serve_eval.schema import ConcurrencyStep, Failure, FailureKind, Limits, Response

START, MOST = 16, 1024
DOUBLE, MORE, LESS = 2.0, 1.25, 0.7
RISES = 1.2
"""Factor in throughput that a doubling must reach to be kept. A smaller raise must reach half of
what it adds."""
HOLD_WINDOWS = 8
"""Windows between two trials of a higher number, after climbing ended."""
MAX_STEPS = 1000


def is_overloaded(result: Response | Failure) -> bool:
    """Return True if any attempt was refused for load or timed out."""
    return any(a.status in (429, 503) or a.failure is FailureKind.TIMEOUT for a in result.attempts)


class Fixed:
    """A fixed number of requests in flight, which results do not change."""

    adapts = False
    steps: tuple[ConcurrencyStep, ...] = ()

    def __init__(self, limit: int) -> None:
        self.limit = limit

    def note_result(self, result: Response | Failure, now: float) -> None:
        """Do nothing, since the number is fixed."""


class Automatic:
    """An automatic number of requests in flight, which is `limit`.

    `note_result` takes every result with the time since the start in seconds. The first results
    after a change do not count, because they were sent under the old number.
    """

    adapts = True

    def __init__(self, limits: Limits, most: int = MOST) -> None:
        self._most, self._slow_s = most, limits.stall_timeout_s / 2
        self.limit = min(START, most)
        # The last number that paid off, and its samples per second.
        self._before, self._best = self.limit, 0.0
        self._climbing, self._trial, self._held = True, False, 0
        self._settling, self._began, self._count, self._latency = self.limit, 0.0, 0, 0.0
        self._steps: list[ConcurrencyStep] = []

    @property
    def steps(self) -> tuple[ConcurrencyStep, ...]:
        """Every change, oldest first."""
        return tuple(self._steps)

    def note_result(self, result: Response | Failure, now: float) -> None:
        """Take a result, and change `limit` if necessary."""
        if self._settling > 0:
            self._settling -= 1
            self._began = now
            return
        self._count += 1
        self._latency += result.latency_s if isinstance(result, Response) else 0.0
        if is_overloaded(result):
            self._fall(now, "the endpoint refused the load or timed out")
        elif self._count >= max(self.limit, START):
            self._judge(now)

    def _judge(self, now: float) -> None:
        """Change the number, or keep it, at the end of a window."""
        rate = self._count / max(now - self._began, 1e-6)
        needed = self._best * (RISES if self._climbing else 1.0 + (MORE - 1.0) / 2)
        if self._latency / self._count > self._slow_s:
            self._fall(now, "answers take half of the stall timeout")
        elif (self._climbing or self._trial) and rate < needed:
            self._climbing = self._trial = False
            self._change(self._before, now, "a higher number did not add throughput")
        elif self._climbing or self._trial or self._held >= HOLD_WINDOWS:
            self._before, self._best, self._held = self.limit, rate, 0
            self._trial = not self._climbing
            self._change(
                max(self.limit + 1, self.limit * (DOUBLE if self._climbing else MORE)),
                now,
                "trying a higher number",
            )
        elif rate < LESS * self._best:
            self._fall(now, "throughput fell")
        else:
            self._held += 1
            self._window(now)

    def _fall(self, now: float, why: str) -> None:
        self._climbing = self._trial = False
        self._best, self._held = 0.0, 0
        self._change(self.limit * LESS, now, why)
        self._before = self.limit

    def _change(self, wanted: float, now: float, why: str) -> None:
        limit = max(1, min(self._most, round(wanted)))
        if limit != self.limit and len(self._steps) < MAX_STEPS:
            elapsed, count = max(now - self._began, 1e-6), self._count
            self._steps.append(
                ConcurrencyStep(
                    at_s=round(now, 3),
                    concurrency=limit,
                    samples_per_s=round(count / elapsed, 3),
                    latency_s=round(self._latency / max(count, 1), 6),
                    why=why,
                )
            )
        # Results of this number of requests, sent under the old number, are still to come.
        self._settling = self.limit if limit != self.limit else 0
        self.limit = limit
        self._window(now)

    def _window(self, now: float) -> None:
        self._began, self._count, self._latency = now, 0, 0.0
