"""Count attempts, retries, times, tokens and thoughts in constant memory."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping

import msgspec
from msgspec import UNSET

from serve_eval.schema import (
    Acceptance,
    AnswerSpan,
    Failure,
    LostAnswer,
    Request,
    Response,
    ThoughtsSeen,
    Traffic,
)

MOST_FINGERPRINTS = 20
"""Number of different system_fingerprints that are counted."""
RESOLUTION = 0.01
"""Relative width of the classes in which times are counted: the error of a percentile."""
_STEP = math.log1p(RESOLUTION)


class Times:
    """A histogram of seconds whose classes are 1 % wide at any scale."""

    def __init__(self) -> None:
        self._classes: dict[int, int] = {}
        self._count, self._max = 0, 0.0

    def add(self, seconds: float, times: int = 1) -> None:
        """Count a time; -1 removes it. A maximum that was removed is replaced to within 1 %."""
        number = math.floor(math.log(seconds) / _STEP) if seconds > 1e-6 else -1400
        count = self._classes.get(number, 0) + times
        self._classes[number] = count
        self._count += times
        if not count:
            del self._classes[number]
            highest = max(self._classes, default=None)
            if highest is None or highest < number:
                self._max = 0.0 if highest is None else math.exp((highest + 0.5) * _STEP)
        elif seconds > self._max:
            self._max = seconds

    def percentiles(self) -> Mapping[str, float]:
        """Return p50, p90 and p99 to within 1 %, and the exact maximum, in seconds.

        Empty without any time.
        """
        if not self._count:
            return {}
        wanted = {
            name: math.ceil(share * self._count)
            for name, share in (("p50", 0.5), ("p90", 0.9), ("p99", 0.99))
        }
        found, below = {}, 0
        for number, count in sorted(self._classes.items()):
            below += count
            for name, rank in wanted.items():
                if name not in found and below >= rank:
                    found[name] = round(min(math.exp((number + 0.5) * _STEP), self._max), 6)
        return {**found, "max": self._max}


class TokenSteps:
    """Sums of speculative decoding.

    An answer reports T / I, its tokens per step of the engine, and T in its usage, which gives I,
    the number of steps. The first step has no draft and yields one token.
    """

    def __init__(self) -> None:
        self._answers, self._tokens, self._steps, self._told = 0, 0, 0.0, 0.0

    def add(self, tokens: int, per_step: float, times: int = 1) -> None:
        self._answers += times
        self._tokens += times * tokens
        self._steps += times * max(1.0, tokens / per_step)
        self._told += times * per_step

    def acceptance(self) -> Acceptance | None:
        """Return the acceptance of all answers, or None without any."""
        if not self._answers:
            return None
        later = self._steps - self._answers
        return Acceptance(
            answers=self._answers,
            length=(self._tokens - self._answers) / later if later > 1e-6 * self._steps else None,
            all_steps=self._tokens / self._steps,
            per_answer=self._told / self._answers,
        )


class Fingerprints:
    """Counts the answers with each system_fingerprint, and keeps when they came."""

    def __init__(self) -> None:
        self._spans: dict[str, list[float]] = {}

    def add(self, fingerprint: str, start_s: float, end_s: float, times: int = 1) -> None:
        """Count an answer; -1 removes it, but not its times."""
        span = self._spans.get(fingerprint)
        if span is None:
            if len(self._spans) >= MOST_FINGERPRINTS:
                return
            span = self._spans[fingerprint] = [0, math.inf, -math.inf]
        span[0] += times
        span[1], span[2] = min(span[1], start_s), max(span[2], end_s)

    def spans(self) -> Mapping[str, AnswerSpan]:
        """Return the spans in the order of their beginnings."""
        found = sorted(self._spans.items(), key=lambda item: item[1][1])
        return {
            name: AnswerSpan(answers=int(count), first_s=first, last_s=last)
            for name, (count, first, last) in found
            if count > 0
        }


class TrafficCounter:
    """Counts every result of a task, from this session and from the journal."""

    def __init__(self) -> None:
        self._attempts = self._not_streamed = self._prompt_tokens = self._completion_tokens = 0
        self._retries: Counter[str] = Counter()
        self._latency, self._ttft, self._tpot = Times(), Times(), Times()
        self._steps = TokenSteps()
        self._fingerprints = Fingerprints()
        self._cached: int | None = None
        self._without_usage = self._uncounted = 0

    def see(self, result: Response | Failure, times: int = 1) -> None:
        """Count a result; -1 removes it."""
        attempts = result.attempts
        self._attempts += times * len(attempts)
        self._uncounted += times * count_uncounted(result)
        if len(attempts) > 1:
            for earlier, later in itertools.pairwise(attempts):
                if earlier.failure is None:
                    continue  # the next one requests another choice
                kind = earlier.failure.value
                at_fault = earlier.status if earlier.status and earlier.status >= 400 else None
                self._retries[f"{kind} {at_fault}" if at_fault else kind] += times
                self._not_streamed += times * (earlier.streamed and not later.streamed)
        if isinstance(result, Response):
            self._see_answer(result, times)

    def _see_answer(self, result: Response, times: int) -> None:
        self._latency.add(result.latency_s, times)
        if result.ttft_s is not None:
            self._ttft.add(result.ttft_s, times)
        if result.tpot_s is not None:
            self._tpot.add(result.tpot_s, times)
        usage = result.usage
        self._without_usage += times * lacks_usage(result)
        self._prompt_tokens += times * usage.prompt_tokens
        self._completion_tokens += times * usage.completion_tokens
        if usage.cached_tokens is not None:
            self._cached = (self._cached or 0) + times * usage.cached_tokens
        if result.tokens_per_step and usage.completion_tokens:
            self._steps.add(usage.completion_tokens, result.tokens_per_step, times)
        if result.system_fingerprint is not UNSET and result.attempts:
            given = result.attempts[-1]
            self._fingerprints.add(result.system_fingerprint, given.start_s, given.end_s, times)

    def traffic(self) -> Traffic:
        return Traffic(
            attempts=self._attempts,
            retries={kind: count for kind, count in sorted(self._retries.items()) if count},
            not_streamed=self._not_streamed,
            latency_s=self._latency.percentiles(),
            ttft_s=self._ttft.percentiles(),
            tpot_s=self._tpot.percentiles(),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=self._completion_tokens,
            acceptance=self._steps.acceptance(),
            cached_tokens=self._cached,
            system_fingerprints=self._fingerprints.spans(),
            without_usage=self._without_usage,
            uncounted_attempts=self._uncounted,
        )


def lacks_usage(response: Response) -> bool:
    """Return True if an answer does not report the tokens of its prompt, or its own."""
    usage = response.usage
    return not usage.prompt_tokens or bool(response.text and not usage.completion_tokens)


def count_uncounted(result: Response | Failure) -> int:
    """Return the attempts of a sample that may have cost tokens which no reply reports.

    A server may have begun the answer of a failed one. The usage of a response is that of its last
    attempt, or of those for all of its choices.
    """
    if isinstance(result, Response):
        if len(result.attempts) == 1:
            return 0
        if result.exchanges:
            return sum(count_uncounted(one.response) for one in result.exchanges)
    lost = sum(one.lost_answer is not LostAnswer.NOTHING for one in result.attempts)
    answered = sum(one.failure is None for one in result.attempts)
    if isinstance(result, Response):
        answered = 0 if result.choice_logprobs else max(0, answered - 1)
    return lost + answered


_SWITCHES = ("chat_template_kwargs", "reasoning_effort", "thinking", "thinking_token_budget")
"""Fields that decide whether a model thinks."""


class KnownThoughts:
    """Remembers which kinds of requests have thoughts that stop strings end, or templates open.

    A kind is the route with the fields that decide whether a model thinks.
    """

    def __init__(self) -> None:
        self.seen = ThoughtsSeen()
        self._stopped: set[str] = set()
        self._opened: dict[str, asyncio.Future[bool]] = {}

    def ends_at_stops(self, request: Request) -> bool:
        """Return True if a stop string has ended thoughts of this kind of request."""
        return bool(self._stopped) and _kind(request) in self._stopped

    def note_stopped(self, request: Request) -> None:
        """Remember that a stop string ended thoughts of this kind of request."""
        self._stopped.add(_kind(request))
        self.seen.stopped += 1

    async def are_opened(self, request: Request, ask: Callable[[], Awaitable[bool]]) -> bool:
        """Return True if the chat template opens thoughts; calls `ask` once for each kind."""
        kind = _kind(request)
        if kind not in self._opened:
            self._opened[kind] = asyncio.ensure_future(ask())
        return await asyncio.shield(self._opened[kind])


def _kind(request: Request) -> str:
    switches = {name: request.extra[name] for name in _SWITCHES if name in request.extra}
    return msgspec.json.encode((isinstance(request.prompt, str), switches), order="sorted").decode()
