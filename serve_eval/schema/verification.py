"""Types of a verification, of probes of identity and of a check of tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Literal

from msgspec import Struct

from serve_eval.frozen import freeze
from serve_eval.schema.result import ResultHeader
from serve_eval.schema.sample import SamplingDefaults
from serve_eval.schema.traffic import ServerCounts

REFERENCE_VERSION = 1
"""Version of the reference file. It changes when an old program could misread a new file."""


class ProbeRoute(StrEnum):
    """The way in which a server is asked the probes; answers to different ones are not compared.

    TEXT: /completions. CHAT: a message that asks to continue the text. PREFIX: the text is the
    beginning of the assistant's own message, which the server continues. PLAIN: as CHAT, with the
    model's thoughts switched off.
    """

    TEXT = "text"
    CHAT = "chat"
    PREFIX = "prefix"
    PLAIN = "plain"


class TokenReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A generated token, its log-probability in nats, and those of the likeliest tokens there."""

    text: str
    logprob: float
    top: dict[str, float] = {}


class ProbeReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One answer to a probe: its first tokens, or `text` alone if the server lists none.

    `skipped` counts the tokens at the beginning that the server left out of its list.
    `cached_tokens` of the `prompt_tokens` came from the prefix cache (None: not reported).
    """

    text: str
    tokens: tuple[TokenReading, ...] = ()
    skipped: int = 0
    prompt_tokens: int = 0
    cached_tokens: int | None = None


class RepeatedReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An answer of the reference's server to a probe that was asked again.

    It was given `times` times, with up to `in_flight` questions in flight.
    """

    reading: ProbeReading
    in_flight: int
    times: int = 1


class Probe(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A text that breaks off where the next token is uncertain, and the reference's answers to it.

    `reading` is the answer to compare with; `again` are the different further answers of the same
    server to the same text, `sibling` is the answer of a healthy sibling and `siblings` are those
    of further ones (None: no answer).
    """

    id: str
    prompt: str
    reading: ProbeReading
    again: tuple[RepeatedReading, ...] = ()
    sibling: ProbeReading | None = None
    siblings: tuple[ProbeReading | None, ...] = ()

    @property
    def healthy(self) -> tuple[ProbeReading, ...]:
        """The answers of all siblings."""
        return tuple(one for one in (self.sibling, *self.siblings) if one is not None)


class VerificationReference(Struct, frozen=True, kw_only=True):
    """A reference: the probes, and what was measured of healthy servers.

    `noise` is the largest distance of the server from itself; `floor` is the largest distance of a
    healthy sibling, or was given (`floor_given`), and `median` the median of all siblings (None:
    unknown). `step` is the step of its log-probabilities. All four are in nats. `salted`: each
    question had a cache_salt of its own, so that nothing came from the prefix cache. `protocol`
    says what decides the probes and the answers. `sampling_defaults` are those of the reference's
    server (None: an older version did not look).
    """

    version: int = REFERENCE_VERSION
    made_at: str
    model: str
    server: str | None
    server_version: str | None
    fingerprint: str | None
    source: str
    seed: int
    protocol: dict[str, str] = {}
    salted: bool
    route: ProbeRoute = ProbeRoute.TEXT
    noise: float
    step: float
    floor: float | None
    floor_given: bool = False
    median: float | None
    sampling_defaults: SamplingDefaults | None = None
    probes: tuple[Probe, ...]

    @property
    def measured(self) -> bool:
        """True if siblings measured the floor, whose answers are compared probe by probe."""
        return not self.floor_given and any(probe.healthy for probe in self.probes)


class VerificationOutcome(StrEnum):
    """The conclusion about a server."""

    IDENTICAL = "IDENTICAL"
    OTHER_NUMERICS = "OTHER NUMERICS"
    OTHER_DEFAULTS = "OTHER SAMPLING DEFAULTS"
    FAULT = "FAULT OF SINGLE REQUESTS"
    ANOTHER = "ANOTHER MODEL, PRECISION OR CACHE"
    UNDECIDED = "UNDECIDED"


class ProbeDistance(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The distance of an answer from the reference's answer, in nats.

    The distance is that of the log-probability of the reference's likeliest token, the larger one
    of both tokens; `token` says which of them it was. `at_least`: the token was not listed, so the
    distance is a lower bound. `flipped`: the answer has another token. A repeated probe has the
    distances of its repeats. `sibling_nats` are the measured distances of the siblings there.
    `texts_only`: log-probabilities were not compared. `prompt_tokens` is the length of the probe,
    by the reference's server.
    """

    probe: str
    nats: float
    token: int = 0
    at_least: bool = False
    texts_only: bool = False
    flipped: bool = False
    first_nats: float = 0.0
    second_nats: float | None = None
    repeats: tuple[float, ...] = ()
    sibling_nats: tuple[float, ...] = ()
    prompt_tokens: int = 0


class VerifiedSide(Struct, frozen=True, kw_only=True):
    """The server that was verified, its conclusion, and the figures behind it.

    `evidence` is an e-value against "at most twice as far away as the siblings", or against "at
    most the allowed share of probes lies beyond the floor" that was given, so 1 / evidence bounds a
    p-value; `p_holm` is that, corrected over all servers of the command. `beyond_noise`,
    `beyond_floor` and `far` count probes, `further` those more than twice as far away as all
    siblings, and `compared` those that siblings answered. `excluded_share` is the smallest share of
    probes beyond the limit of the outcome that the test would have excluded with 99 % confidence,
    for this server alone. `needed` is the number of probes that show a fault in a tenth of the
    requests (None: none are needed). `effect` is the median distance in units of the sibling's.
    `prompts`
    names prompts that the server reads as other tokens than the reference's server, or than the
    files of a tokenizer. `samples`: it ignores the temperature of 0. A server that is `part_of` a
    deployment has a `role` there, if that is known. `engines` are the counts of the servers behind
    it while it was asked, as far as they count. `sampling_defaults` is what it adds to requests
    (None: not probed, as for the parts of a deployment).
    """

    name: str
    url: str
    part_of: str | None = None
    role: str | None = None
    outcome: VerificationOutcome
    why: str
    asked: int
    unanswered: int
    beyond_noise: int
    beyond_floor: int
    far: int
    further: int = 0
    compared: int = 0
    needed: int | None = None
    median: float
    effect: float | None
    evidence: float
    p_holm: float | None = None
    excluded_share: float | None
    tokens: int
    requests: int
    cached_tokens: int | None
    salted: bool
    samples: bool = False
    fingerprint: str | None
    distances: tuple[ProbeDistance, ...]
    prompts: tuple[str, ...] = ()
    engines: tuple[ServerCounts, ...] = ()
    sampling_defaults: SamplingDefaults | None = None


class LostServer(Struct, frozen=True, kw_only=True):
    """One of several servers, or a part of a deployment, that could not be verified, and why."""

    name: str
    why: str
    part_of: str | None = None


@freeze
class Verification(ResultHeader):
    """The result of `serve-eval verify`.

    `model` is the one of the reference. `siblings` is the number of those that were compared, and
    `floor_measured` says that they measured the floor. `named` says which part of a deployment
    differs, if that was found. `groups` are the servers of a fleet that answer alike, the largest
    group first. `lost` are servers without an outcome.
    """

    reference: str
    noise: float
    step: float
    floor: float | None
    sibling_median: float | None
    siblings: int = 0
    floor_measured: bool = False
    reference_requests: int
    reference_tokens: int = 0
    prompt_lengths: tuple[int, int]
    salted: bool
    warnings: tuple[str, ...]
    sides: tuple[VerifiedSide, ...]
    named: tuple[str, ...] = ()
    groups: tuple[tuple[str, ...], ...] = ()
    lost: tuple[LostServer, ...] = ()


ToolForm = Literal["whole", "stream"]
"""The form of an answer: one body, or an event stream."""
ToolAgainst = Literal["threshold", "lowest load", "whole answer", "reference", "itself"]
"""The other side of a comparison: a threshold, another pass, or an earlier check."""


@freeze
class ToolCell:
    """The requests asked in one form at one load.

    `faults` counts the answers with each kind of error, and `kinds` has by kind of request the
    answers without an error and all answers. `failed` requests have no answer and count nowhere.
    `precision`, `recall` and `f1` are those of calling where the model may choose (None: no such
    answer). The tokens are sums, and `unreported` counts the answers without token counts.
    """

    form: ToolForm
    load: int
    scored: int
    sound: int
    failed: int
    interval: tuple[float, float] | None
    faults: Mapping[str, int]
    kinds: Mapping[str, tuple[int, int]]
    precision: float | None
    recall: float | None
    f1: float | None
    in_flight: int
    prompt_tokens: int
    completion_tokens: int
    unreported: int
    reasoned: int
    wall_s: float

    @property
    def name(self) -> str:
        return f"{self.form} at {self.load}"


@freeze
class ToolFinding:
    """One kind of error that accuses the server.

    `cells` are where, `against` what they were compared with, `p` the smallest p-value, corrected
    (None: one error proves it). `points_to` is the part of a server that makes such errors.
    `examples` are ids of samples with what came.
    """

    fault: str
    cells: tuple[str, ...]
    where: str
    against: ToolAgainst
    count: int
    scored: int
    p: float | None
    points_to: str
    examples: tuple[tuple[str, str], ...] = ()


@freeze
class ToolProbe:
    """A kind of request, or a field, with what the endpoint did with it.

    IGNORED is a field that should be refused and was not.
    """

    name: str
    outcome: Literal["PASS", "FAIL", "IGNORED", "UNSUPPORTED"]
    said: str


@freeze
class ToolCheck(ResultHeader):
    """Tool calls and guided decoding of an endpoint, as stored in tools.json.

    `fingerprint` is that of the requests, `parameters` the checks of single fields, and
    `unsupported` the kinds of requests that were not asked.
    """

    base_url: str
    fingerprint: str
    kinds: tuple[str, ...]
    unsupported: tuple[ToolProbe, ...]
    parameters: tuple[ToolProbe, ...]
    cells: tuple[ToolCell, ...]
    findings: tuple[ToolFinding, ...]
    remarks: tuple[str, ...]
    reference: str | None
    requests: int


IDENTITY_VERSION = 1
"""Version of the probes of a reference. Probes of another one are never compared."""


class IdentityReading(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The beginning of an answer, or a whole one, as the client receives it.

    `tokens` have log-probabilities (none in a whole answer). `calls` are the names and the
    arguments of tool calls. `count` is the number of generated tokens.
    """

    text: str = ""
    thoughts: str = ""
    calls: tuple[tuple[str, str], ...] = ()
    finish: str = ""
    tokens: tuple[TokenReading, ...] = ()
    count: int = 0
    prompt_tokens: int = 0


class IdentityProbe(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A request of a task, by the id of its sample, and the reference's answers to it.

    `again` are the answers to the same request, asked again.
    """

    id: str
    reading: IdentityReading
    again: tuple[IdentityReading, ...] = ()


class IdentityProbes(Struct, frozen=True, kw_only=True):
    """The probes of a task that a reference holds, as stored next to its scores.

    `probes` are a random sample of the task's requests, answered with `length` tokens. `whole` are
    requests that were answered to the end, twice alike. `fingerprint` is that of the task, `stream`
    and `concurrency` say how they were asked, and `defaults` what the server adds to requests.
    """

    version: int = IDENTITY_VERSION
    task: str
    made_at: str
    source: str
    fingerprint: dict[str, str]
    stream: bool
    concurrency: int
    length: int
    defaults: SamplingDefaults
    probes: tuple[IdentityProbe, ...]
    whole: tuple[IdentityProbe, ...]
