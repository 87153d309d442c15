"""Say what a run asks and how it is judged: the Plan and its parts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class Spec:
    """A file of a folder of alternatives (a task, a launcher, a verdict rule) with its keyword
    arguments.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class AccuracySpec:
    """What a reference is matched on. The user declares it: no server tells it."""

    dtype: str = "auto"
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    spec_dec_algo: str | None = None
    extra_acc_spec: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """How an endpoint is reached: the *name* of the key's variable ("": no key is sent) and
    unexpanded `${VAR}` values, never a key.

    `max_tokens_field` is the name under which the server wants the most tokens of an answer.
    """

    api_key_env: str = "OPENAI_API_KEY"
    headers: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    ca_bundle: str | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"


Order = Literal["natural", "random", "prefix", "longest"]
"""In which order samples are started: as the protocol has them; at random; those that share a
prefix together, for the server's prefix cache; those with the longest expected answers first, so
that the end of a run does not wait for one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How fast, how long, how patient: limits never change what is asked, so a resumed run may use
    others.

    `concurrency` is the number of requests in flight, "auto" to find it while the run goes on;
    `rate_limit` bounds the starts of requests per second (None: not at all). `order_seed` is the
    seed of the random order of a run that begins (None: it is drawn). `stream` asks for event
    streams, which adds the time to the first token and per token to the report and changes no
    score.

    `max_attempts` is per sample and `retry_budget` per run: so many retries in all (None: a quarter
    of the samples that are asked, at least 100). `max_error_rate` is the share of failed samples
    beyond which the run stops.

    `connect_timeout_s` bounds the TCP and TLS set-up of one attempt, `stall_timeout_s` the time
    without data, `sample_timeout_s` a whole sample with all its attempts and pauses;
    `max_response_bytes` is read of an answer. `outage_timeout_s` is how long requests wait while no
    server listens, or it is starting (0: the run ends at once). `scorer_timeout_s` bounds the
    scoring of one answer, where that is done in a process of its own.
    """

    concurrency: int | Literal["auto"] = 64
    rate_limit: float | None = None
    order: Order = "random"
    order_seed: int | None = None
    stream: bool = False
    max_attempts: int = 4
    retry_budget: int | None = None
    max_error_rate: float = 0.10
    connect_timeout_s: float = 60.0
    stall_timeout_s: float = 900.0
    sample_timeout_s: float = 3600.0
    outage_timeout_s: float = 60.0
    max_response_bytes: int = 16 * 1024 * 1024
    scorer_timeout_s: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Everything that decides what a run asks and how it is judged. Pure data; saved with the run.

    `model` is the name that is sent and under which references are looked up; `reference_model`
    overrides the second. `limit` is the size of a seeded random subset per task (None: all planned
    samples), each of which is asked `repeats` times, or as often as `repeats_of` says of its task.
    `early_stop` is the probability with which the classic verdict of a task that is not asked to
    its end may differ from that of the whole (None: all is asked); under a paired rule, that of too
    many answers missing unseen. `no_reference`: none is used, and values are printed without a
    verdict; `allow_missing_reference`: so they are where none applies. `allow_code_execution`: code
    that the endpoint wrote may be run on this machine. `include_path` are folders of the user's own
    tasks, scorers, launchers and verdict rules.
    """

    model: str | None
    launcher: Spec
    tasks: tuple[Spec, ...]
    verdict: Spec = Spec(name="classic")
    reference_model: str | None = None
    accuracy_spec: AccuracySpec = AccuracySpec()
    dataset_roots: tuple[str, ...] = ()
    allow_hub: bool = False
    references_dir: str | None = None
    limit: int | None = None
    repeats: int = 1
    repeats_of: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    no_reference: bool = False
    allow_missing_reference: bool = False
    allow_mismatch: tuple[str, ...] = ()
    integration_test: bool = False
    early_stop: float | None = None
    allow_code_execution: bool = False
    include_path: tuple[str, ...] = ()
    connection: Connection = Connection()
    limits: Limits = Limits()

    def times(self, task: str) -> int:
        """Return how often each prompt of a task is asked."""
        return self.repeats_of.get(task, self.repeats)
