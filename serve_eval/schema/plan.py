"""Define the Plan: what a run asks, how it is judged, and the job that runs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from serve_eval.frozen import freeze
from serve_eval.schema.sample import ChatRoute, ServerDefaults

REHEARSAL = "rehearsal"
"""Launcher that starts the stand-in for trtllm-serve in the place of another launcher's servers."""


@freeze
class Spec:
    """A file of a folder of alternatives with its keyword arguments.

    Alternatives are tasks, launchers and verdict rules.
    """

    name: str
    options: Mapping[str, object] = field(default_factory=dict)


@freeze
class AccuracySpec:
    """The specification that a reference is matched on.

    The user declares it: no server reports it.
    """

    dtype: str = "auto"
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    spec_dec_algo: str | None = None
    extra_acc_spec: str | None = None


MOST_REPEATS = 100_000
"""Maximum number of times that a prompt is asked: each answer takes memory and a line of a file."""
SendMedia = Literal["inline", "path"]
"""Way to send a medium that lies in a file: its bytes in base64, or a file:// URL of its path, for
servers that may read it (vLLM: --allowed-local-media-path)."""


@freeze
class Connection:
    """The way to reach an endpoint.

    `api_key_env` is the *name* of the key's variable ("": no key is sent). Values of `${VAR}` are
    not expanded, so that it never holds a key. `client_cert` and `client_key` are the paths of PEM
    files by which we prove to the server who we are (without `client_key`, the first has both);
    `client_key_password_env` is the name of the variable with the key's password.
    `max_tokens_field` is the server's name for the largest number of tokens of an answer.
    `send_media` says how media in files are sent. `route` answers prompts that are messages.
    `conversation_id` is the place of the id that each conversation has: header:NAME or body:PATH.
    """

    api_key_env: str = "OPENAI_API_KEY"
    headers: Mapping[str, str] = field(default_factory=dict)
    proxy: str | None = None
    ca_bundle: str | None = None
    client_cert: str | None = None
    client_key: str | None = None
    client_key_password_env: str | None = None
    max_tokens_field: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    send_media: SendMedia = "inline"
    route: ChatRoute = "chat"
    conversation_id: str | None = None


Order = Literal["natural", "random", "prefix", "longest"]
"""Order in which samples start: natural, as the protocol has them; random; prefix, with samples
that share a prefix together, for the server's prefix cache; longest, with the longest expected
answers first, so that the end of a run does not wait for one."""


Pace = Literal["free", "recorded"]
"""Times at which requests start: as soon as there is room, or as they were recorded."""
TOKENS, TIME = "max_tokens_total", "max_time_s"
CERTAIN = "end_when_certain"
"""The limits that end a run before everything is asked, by their names in `limits`."""


@freeze
class Limits:
    """Limits on speed, time and retries.

    They never change what is asked, so a resumed run may use others.

    `concurrency` is the number of requests in flight, "auto" to find it during the run;
    `rate_limit` bounds the starts of requests per second, evenly spaced, and `requests_per_minute`
    those of any minute, as a quota does (None: no bound). `order_seed` is the seed
    of the random order of a new run (None: it is drawn). `stream` asks for event streams, which
    adds the time to the first token and per token to the report and does not change scores.
    `pace` "recorded" starts recorded requests at their times, however many are in flight.

    `max_attempts` is per sample and `retry_budget` is the number of retries per run (None: a
    quarter of the samples, at least 100). `max_error_rate` is the share of failed samples beyond
    which the run stops.

    `connect_timeout_s` bounds the TCP and TLS set-up of one attempt, `stall_timeout_s` the time
    without data, `sample_timeout_s` a whole sample with all its attempts and pauses.
    `max_response_bytes` is the part of a response that is read; no request may have more than
    `max_request_bytes`. `outage_timeout_s` is the time for
    which requests wait while no server listens, or while it starts (0: the run ends immediately).
    `scorer_timeout_s` bounds the scoring of one answer if it runs in a separate process.
    `known_finish_reasons` are finish reasons of no known server that end a whole answer.
    `page_samples` is the number of answers that a page shows.

    `max_tokens_total` bounds the tokens of prompts and answers, and `max_time_s` the seconds of
    asking, both of the run with all its sessions (None: no bound). No request starts beyond them,
    and those in flight are awaited.
    """

    concurrency: int | Literal["auto"] = 64
    rate_limit: float | None = None
    requests_per_minute: int | None = None
    order: Order = "random"
    order_seed: int | None = None
    stream: bool = False
    pace: Pace = "free"
    max_attempts: int = 4
    retry_budget: int | None = None
    max_error_rate: float = 0.10
    connect_timeout_s: float = 60.0
    stall_timeout_s: float = 900.0
    sample_timeout_s: float = 3600.0
    outage_timeout_s: float = 60.0
    max_response_bytes: int = 16 * 1024 * 1024
    max_request_bytes: int = 128 * 1024 * 1024
    scorer_timeout_s: float = 10.0
    known_finish_reasons: tuple[str, ...] = ()
    page_samples: int = 5000
    max_tokens_total: int | None = None
    max_time_s: float | None = None


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` parts of the samples of a run, numbered from 1."""

    number: int
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


AUTO = "auto"
"""Name of the preset that the id of the served model decides."""


@freeze
class ModelPreset:
    """The row of the table of presets that the options of a plan's tasks were completed from.

    `name` is the row's ("": only an effort was asked for). `effort` is the effort that was asked
    for ("": none). `table` is the version of the table, and empty until the model is known, since
    nothing was taken from it yet. `source` is the address of the model's card, which was read on
    the day `read`. `values` are the options that the row offers; a task's own options override
    them.
    """

    name: str = ""
    effort: str = ""
    table: str = ""
    source: str = ""
    read: str = ""
    values: Mapping[str, object] = field(default_factory=dict)

    @property
    def taken(self) -> bool:
        """True if the tasks have the values already."""
        return bool(self.table)


@freeze
class Plan:
    """Everything that decides what a run asks and how it is judged. Pure data; saved with the run.

    `model` is the name that is sent and under which references are looked up; `reference_model`
    overrides the second. `limit` is the size of a seeded random subset per task (None: all planned
    samples). `samples` are the ids of the only samples that are asked (none: all), and `samples_of`
    those of single tasks; `limit` draws from them. `shard` is the part of these that is asked
    (None: all), and is judged only with the other parts. Each sample is asked `repeats` times, or
    as often as `repeats_of` says for its task.
    `early_stop` is the probability with which the classic verdict of a task that stops early may
    differ from that of the whole (None: no early stop); under a paired rule, it is the probability
    that too many missing answers go unnoticed. `accept_identical`: a task of which the reference's
    probes show the same deployment is not asked, and passes by identity. `no_reference`: no
    reference is used, and values are printed without a verdict; `allow_missing_reference`: the same
    for tasks without a matching
    reference. `allow_code_execution`: code that the endpoint wrote may run on this machine.
    `allow_meaningless`: servers may have settings under which answers do not follow from the model.
    `include_path` are folders of the user's own tasks, scorers, launchers and verdict rules.
    `server_defaults` says if neutral values are sent for sampling fields that a server may set
    itself. `expect` says by the names of PathClaim which parts of the path must be proven; False
    takes back what the launcher expects. `no_prompts`: the run folder keeps no prompts; `no_media`:
    it keeps their texts only. `preset` says which preset the options of the tasks were completed
    from (None: none); the tasks hold its values.
    `rule_named`: the user named the verdict rule or its options, also if it is the default.
    `gpus` is the number of GPUs of the servers (None: as the launcher knows). `end_when_certain`:
    nothing more is asked once one task fails, whatever the others do.
    """

    model: str | None
    launcher: Spec
    tasks: tuple[Spec, ...]
    verdict: Spec = Spec(name="classic")
    rule_named: bool = False
    reference_model: str | None = None
    accuracy_spec: AccuracySpec = AccuracySpec()
    dataset_roots: tuple[str, ...] = ()
    allow_hub: bool = False
    references_dir: str | None = None
    samples: tuple[str, ...] = ()
    samples_of: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    limit: int | None = None
    shard: Shard | None = None
    repeats: int = 1
    repeats_of: Mapping[str, int] = field(default_factory=dict)
    seed: int = 0
    no_reference: bool = False
    allow_missing_reference: bool = False
    allow_mismatch: tuple[str, ...] = ()
    integration_test: bool = False
    early_stop: float | None = None
    accept_identical: bool = False
    allow_code_execution: bool = False
    allow_meaningless: bool = False
    include_path: tuple[str, ...] = ()
    server_defaults: ServerDefaults = "neutral"
    expect: Mapping[str, bool] = field(default_factory=dict)
    no_prompts: bool = False
    no_media: bool = False
    preset: ModelPreset | None = None
    connection: Connection = Connection()
    limits: Limits = Limits()
    gpus: int | None = None
    end_when_certain: bool = False

    @property
    def subset(self) -> bool:
        """True if only a part of the planned samples is asked, apart from shards."""
        return self.limit is not None or bool(self.samples or self.samples_of)

    @property
    def courses(self) -> int:
        """Number of courses of answers that are searched for a change: of each task and shard."""
        return len(self.tasks) * (1 if self.shard is None else self.shard.count)

    def times(self, task: str) -> int:
        """Return how often each prompt of a task is asked."""
        return self.repeats_of.get(task, self.repeats)


@freeze
class JobSize:
    """The size of a plan's job: nodes, and GPUs and tasks on each of them.

    `whole_nodes`: nobody else may use the nodes. `sbatch_args` are the user's own options in the
    plan, `notes` lines that a reader of the job script should see.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int = 1
    whole_nodes: bool = False
    sbatch_args: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
