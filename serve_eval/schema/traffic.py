"""Define the counts that a run keeps of attempts, times, tokens, engines and thoughts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import field

import msgspec
from msgspec import Struct

from serve_eval.frozen import freeze
from serve_eval.schema.plan import Limits


@freeze
class Acceptance:
    """Tokens per step of speculative decoding, over the `answers` that report it.

    docs/method.md has the formulas. `length` leaves out the first step of each answer, which has no
    draft; references are compared with it (None: no answer had a second step). `all_steps` counts
    that step. `per_answer` is the mean of the answers' own figures.
    """

    answers: int
    length: float | None
    all_steps: float
    per_answer: float


@freeze
class AnswerSpan:
    """The answers with one system_fingerprint: how many, and when they came.

    `first_s` is when the first of them was asked and `last_s` when the last one came, in seconds
    since 1970.
    """

    answers: int
    first_s: float
    last_s: float


@freeze
class Traffic:
    """The traffic of a task, over all sessions.

    `attempts` counts requests, `retries` those beyond a sample's first by the failure before
    ("http_error 429"), `not_streamed` those among them that asked without streaming for an answer
    that a stream had lost. Times are percentiles (p50, p90, p99, max) in seconds of answered
    requests; empty if nothing was measured. `acceptance` exists if answers report their tokens per
    step. `cached_tokens` of the prompts came from a prefix cache (None: no answer reports it).
    `system_fingerprints` has the answers by the configuration that their servers name, in the order
    of their beginnings; empty if no server names it. `without_usage` answers report no tokens, and
    `uncounted_attempts` may have cost some that no reply reports: failed ones that a server may
    have begun, and answers that were asked again.
    """

    attempts: int
    retries: Mapping[str, int]
    not_streamed: int
    latency_s: Mapping[str, float]
    ttft_s: Mapping[str, float]
    tpot_s: Mapping[str, float]
    prompt_tokens: int
    completion_tokens: int
    acceptance: Acceptance | None = None
    cached_tokens: int | None = None
    system_fingerprints: Mapping[str, AnswerSpan] = field(default_factory=dict)
    without_usage: int = 0
    uncounted_attempts: int = 0


@freeze
class ConcurrencyStep:
    """A change of the number of requests in flight.

    `at_s` is in seconds after the session's first request. `samples_per_s` and `latency_s` are the
    samples finished per second and their mean latency in seconds under the number before.
    """

    at_s: float
    concurrency: int
    samples_per_s: float
    latency_s: float
    why: str


@freeze
class ArrivalLateness:
    """The time by which `requests` started after their recorded times, in seconds.

    `span_s` is the recorded time between the first and the last of them.
    """

    requests: int
    span_s: float
    median_s: float
    p99_s: float
    worst_s: float


@freeze
class Load:
    """The load of one session.

    `loop_lag_s` is the longest delay of our own event loop: the error of the measured times.
    `steps` are the changes of an automatic concurrency. `cancelled` counts the requests in flight
    that an early stop, or the end of the session, gave up; `met_start` those that waited while the
    endpoint reported that it was starting. No server listened in `outages` that
    ended, for `away_s` together. `cores_busy` is the share of the time for which the cores of this
    machine were busy (None: not known). `ended_by` is the limit that ended it before everything was
    asked ("": none did), and `charged_tokens` what a bound of tokens counted, with estimates of
    what no reply reports. `lateness` exists if requests started at recorded times.
    """

    limits: Limits
    order_seed: int
    finished: int
    wall_s: float
    max_in_flight: int
    retries: int
    retry_budget: int
    loop_lag_s: float
    steps: tuple[ConcurrencyStep, ...] = ()
    cancelled: int = 0
    met_start: int = 0
    outages: int = 0
    away_s: float = 0.0
    cores_busy: float | None = None
    ended_by: str = ""
    charged_tokens: int = 0
    lateness: ArrivalLateness | None = None


@freeze
class RunCost:
    """The tokens that a run cost, over all sessions, and the seconds of its GPUs.

    Tokens are those that the answers to its samples report: `without_usage` answers report none,
    and `uncounted_attempts` may have cost more. Judges reported `judge_tokens`, and the probes of
    sampling defaults and of identity `probe_tokens`. `gpu_s` is `served_s` times `gpus`: the
    seconds from the launch of the servers, or the first contact with running ones, to their end or
    to the last contact (None: not known).
    """

    prompt_tokens: int
    generated_tokens: int
    without_usage: int = 0
    uncounted_attempts: int = 0
    judge_tokens: int = 0
    probe_tokens: int = 0
    gpus: int | None = None
    served_s: float | None = None
    gpu_s: float | None = None


KV_TRANSFER = "external_kv_transfer"
"""vLLM's name for prompt tokens whose KV cache came from another server."""


class EngineCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counts of a server's engine, over all of its clients (None: it does not count this).

    `requests` are those that it finished, for whatever reason. `prompt_tokens_by_source` says by
    vLLM's names where the KV cache of prompts came from: local_compute, local_cache_hit,
    external_kv_transfer. The prefix cache was asked for `prefix_cache_queries` tokens and had
    `prefix_cache_hits` of them. `transfers` are the KV caches of prompts that it sent to another
    server. `transfer_faults` counts failures of a KV connector by their kind. Speculative decoding
    made `drafts`, which held `draft_tokens`, of which `accepted_tokens` became part of an answer;
    SGLang counts only how often it verified some, which are its drafts here.
    """

    requests: int | None = None
    prompt_tokens: int | None = None
    generated_tokens: int | None = None
    prompt_tokens_by_source: Mapping[str, int] | None = None
    prefix_cache_queries: int | None = None
    prefix_cache_hits: int | None = None
    preemptions: int | None = None
    transfers: int | None = None
    transfer_faults: Mapping[str, int] | None = None
    drafts: int | None = None
    draft_tokens: int | None = None
    accepted_tokens: int | None = None

    @property
    def moved_tokens(self) -> int | None:
        """The prompt tokens whose KV cache came from another server."""
        sources = self.prompt_tokens_by_source
        return None if sources is None else sources.get(KV_TRANSFER, 0)

    @property
    def acceptance_length(self) -> float | None:
        """The mean tokens of a step with a draft: 1 + accepted tokens / drafts."""
        if not self.drafts or self.accepted_tokens is None:
            return None
        return 1.0 + self.accepted_tokens / self.drafts


class ServerCounts(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The counts of one server between two readings, at the start and the end of a session.

    `role` is that of DeployedServer. `counts` is None if they are not known, and `lost` says why.
    """

    server: str
    url: str
    role: str | None = None
    counts: EngineCounts | None = None
    lost: str | None = None


class EngineReport(msgspec.Struct, frozen=True, kw_only=True):
    """The counts of the engines during a session, or during all sessions of a run.

    Meanwhile we sent at most `sent` requests, and `answered` samples were answered, each with at
    least one of them. Companions, such as the runs of a comparison for second answers, sent at most
    `companions`.
    """

    servers: tuple[ServerCounts, ...]
    sent: int
    answered: int
    companions: int = 0


@freeze
class RunningShare:
    """The share of bad answers among the latest `window` considered requests, at several requests.

    `at` counts requests from 1 over the run. `by_start` has the shares in the order
    in which requests started, `by_end` in the order in which they ended. Long answers end late,
    whatever the endpoint.
    """

    window: int
    at: tuple[int, ...]
    by_start: tuple[float, ...]
    by_end: tuple[float, ...]


@freeze
class Degradation:
    """A run whose answers became worse, in the order in which its requests started.

    `measure` says in what: the value, or answers that are empty, repeat themselves, or are longer
    or shorter than most. `since` is the number of the first worse request, `noticed` that of the
    request at which it was certain, counted from 1. `before` and `after` are the shares of bad
    answers before `since` and from it on. `started_s` is the time at which that request started, in
    seconds since 1970 in UTC. `counted` says which answers are bad, and on which prompts, if a
    reference decides it; both shares are then among those, while the numbers remain those of all
    requests.
    """

    measure: str
    since: int
    noticed: int
    of: int
    before: float
    after: float
    started_s: float
    course: RunningShare | None = None
    counted: str = ""


class ThoughtsSeen(Struct, kw_only=True, omit_defaults=True):
    """Counts of the answers that thoughts would have spoilt.

    `stopped` were ended by a stop string within their thoughts, and asked again without stop
    strings. `withheld` were asked without them from the beginning, once this had happened: both are
    cut at the first stop string behind their thoughts. `unmarked` were cut at max_tokens within
    thoughts that the chat template had opened, so that nothing in them says so.
    """

    stopped: int = 0
    withheld: int = 0
    unmarked: int = 0

    def remarks(self) -> Iterator[str]:
        """Yield what a reader of the scores should know."""
        if self.stopped:
            yield (
                f"stop strings ended {self.stopped} answers within the model's thoughts: they were"
                f" asked again, and {self.withheld} others asked, without stop strings, and"
                " serve-eval cut them at the first one behind the thoughts"
            )
        if self.unmarked:
            yield (
                f"{self.unmarked} answers were cut within thoughts that the chat template opens:"
                " they count as thoughts, without an answer"
            )
