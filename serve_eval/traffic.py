"""What it took to get the answers: attempts, retries, times and tokens, counted in constant memory."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping

from serve_eval.schema import Acceptance, Failure, Response, Traffic

RESOLUTION = 0.01
"""Relative width of the classes into which times are counted, and so the error of a percentile."""
_STEP = math.log1p(RESOLUTION)


class Times:
    """A histogram of seconds with classes of equal ratio: 1 % wide, whatever the scale."""

    def __init__(self) -> None:
        self._classes: Counter[int] = Counter()
        self._count, self._max = 0, 0.0

    def add(self, seconds: float) -> None:
        self._classes[math.floor(math.log(seconds) / _STEP) if seconds > 1e-6 else -1400] += 1
        self._count += 1
        if seconds > self._max:
            self._max = seconds

    def percentiles(self) -> Mapping[str, float]:
        """p50, p90 and p99 to 1 %, and the exact maximum, in seconds; empty without any time."""
        if not self._count:
            return {}
        wanted = {name: math.ceil(share * self._count) for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))}
        found, below = {}, 0
        for number, count in sorted(self._classes.items()):
            below += count
            for name, rank in wanted.items():
                if name not in found and below >= rank:
                    found[name] = round(min(math.exp((number + 0.5) * _STEP), self._max), 6)
        return {**found, "max": self._max}


class Steps:
    """Sums of speculative decoding. An answer tells T / I, its tokens per step of the engine, and T as its usage, so
    that I, the number of its steps, follows. The first of them has no draft and gives one token."""

    def __init__(self) -> None:
        self._answers, self._tokens, self._steps, self._told = 0, 0, 0.0, 0.0

    def add(self, tokens: int, per_step: float) -> None:
        self._answers += 1
        self._tokens += tokens
        self._steps += max(1.0, tokens / per_step)
        self._told += per_step

    def acceptance(self) -> Acceptance | None:
        """What they come to; None without any."""
        if not self._answers:
            return None
        later = self._steps - self._answers
        return Acceptance(
            answers=self._answers,
            length=(self._tokens - self._answers) / later if later > 1e-6 * self._steps else None,
            all_steps=self._tokens / self._steps,
            per_answer=self._told / self._answers,
        )


class TrafficCounter:
    """Sees every result of a task, of this session and out of the journal."""

    def __init__(self) -> None:
        self._attempts = self._not_streamed = self._prompt_tokens = self._completion_tokens = 0
        self._retries: Counter[str] = Counter()
        self._latency, self._ttft, self._tpot = Times(), Times(), Times()
        self._steps = Steps()
        self._cached: int | None = None

    def see(self, result: Response | Failure) -> None:
        attempts = result.attempts
        self._attempts += len(attempts)
        if len(attempts) > 1:
            for earlier, later in itertools.pairwise(attempts):
                if earlier.failure is None:
                    continue  # the next one is the request for another choice
                kind = earlier.failure.value
                at_fault = earlier.status if earlier.status and earlier.status >= 400 else None
                self._retries[f"{kind} {at_fault}" if at_fault else kind] += 1
                self._not_streamed += earlier.streamed and not later.streamed
        if isinstance(result, Response):
            self._latency.add(result.latency_s)
            if result.ttft_s is not None:
                self._ttft.add(result.ttft_s)
            if result.tpot_s is not None:
                self._tpot.add(result.tpot_s)
            self._prompt_tokens += result.usage.prompt_tokens
            self._completion_tokens += result.usage.completion_tokens
            if result.usage.cached_tokens is not None:
                self._cached = (self._cached or 0) + result.usage.cached_tokens
            if result.tokens_per_step and result.usage.completion_tokens:
                self._steps.add(result.usage.completion_tokens, result.tokens_per_step)

    def traffic(self) -> Traffic:
        return Traffic(
            attempts=self._attempts,
            retries=dict(sorted(self._retries.items())),
            not_streamed=self._not_streamed,
            latency_s=self._latency.percentiles(),
            ttft_s=self._ttft.percentiles(),
            tpot_s=self._tpot.percentiles(),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            acceptance=self._steps.acceptance(),
            cached_tokens=self._cached,
        )
