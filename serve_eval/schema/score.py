"""Define how answers become values: scores, metrics, programs that run and models that judge."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from enum import StrEnum

from msgspec import UNSET, Struct, UnsetType

from serve_eval.frozen import freeze
from serve_eval.schema.plan import Connection
from serve_eval.schema.sample import Message, Sample, SamplingParams
from serve_eval.schema.traffic import Traffic


@freeze
class Metric:
    """The metric of a task.

    A score per sample is in [lo, hi] (None: unbounded). The task's value is `scale` times their
    mean, or times the result of its Aggregation.
    """

    name: str = "accuracy"
    higher_is_better: bool = True
    lo: float | None = 0.0
    hi: float | None = 1.0
    scale: float = 100.0


@freeze
class Hypothesis:
    """Parameters of the classic test, in the units of the value (points).

    A task without `num_samples` is planned for a minimum detectable effect of `theta` points; if
    its data then gives another number of samples, that number is used.
    """

    num_samples: int | None = None
    sigma: float = 50.0
    alpha: float = 0.05
    beta: float = 0.2
    theta: float = 3.0


class Outcome(StrEnum):
    """The outcome of an answer.

    All but CORRECT and PARTIAL are scored with the metric's worst value or 0.
    """

    CORRECT = "correct"
    WRONG = "wrong"
    PARTIAL = "partial"
    UNPARSED = "unparsed"
    EMPTY = "empty"
    REASONING_ONLY = "reasoning_only"
    REFUSED = "refused"


class Score(Struct, frozen=True, kw_only=True, gc=False):
    """The score of an answer.

    `answer` is what was extracted (None: nothing); `parts` are named sub-scores, such as one per
    filter; `mode` is the way in which it failed, if the scorer knows that better than a comparison
    of texts. `kept` is for the task's own `remember`.
    """

    value: float
    outcome: Outcome
    answer: str | None = None
    parts: Mapping[str, float] = {}
    mode: str | None = None
    kept: object = None


Scored = Iterable[tuple[Sample, Score]]
"""Samples with their scores. Value, outcome and parts of a score are kept; the answer is not."""


@freeze
class Sums:
    """A value that depends on sums over the samples, such as edits divided by words.

    `value` turns the sums of these `parts` of the scores into the value, before the metric's scale.
    It is smooth, and the same for sums that are all twice as large. `limits` has, by part, the most
    by which one answer can change it: 0 for a part that depends on the sample alone (None:
    unknown).
    """

    parts: tuple[str, ...]
    value: Callable[[Sequence[float]], float]
    limits: tuple[float, ...] | None = None


@freeze
class Aggregation:
    """The function that turns the scores of a task into its value.

    `of` is a pure function of at least one sample with its score; the metric's scale is applied to
    its result. `name` is its name in the report.

    `monotone`: it reads only the value of a score, and never falls when one rises. Only then do
    missing answers bound the value (Manski). `sums`, if the value depends on sums over the samples,
    is what the paired comparison and its rules need; they refuse any other aggregation but the mean
    by name. What needs a plain mean refuses these as well: an early stop, `power --from`, the drift
    chart. Repeats count as further samples; the variation of a run is then taken from the values of
    the repeats.
    """

    name: str
    of: Callable[[Scored], float]
    monotone: bool = False
    sums: Sums | None = None

    @property
    def paired(self) -> bool:
        """True if two sides can be compared sample by sample."""
        return self is MEAN or self.sums is not None


def _mean(scored: Scored) -> float:
    values = [score.value for _, score in scored]
    return math.fsum(values) / len(values)


MEAN = Aggregation(name="mean", of=_mean, monotone=True)


Secondary = Callable[[Scored], Mapping[str, float]]


def no_secondary(scored: Scored) -> Mapping[str, float]:
    """Return no further values, the default."""
    return {}


Breakdown = Callable[[Iterable[tuple[Sample, float]]], Mapping[str, object]]


def no_breakdown(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return no breakdown, the default."""
    return {}


class ExitReason(StrEnum):
    """The way in which a program ended.

    PASSED: after its last line. RAISED: by an exception, or an exit with its status 1. EXITED:
    before its last line by another exit of its own. KILLED: by a signal, which some of the limits
    send, or by us because all its processes together used too much. TIMEOUT: at the time limit.
    """

    PASSED = "passed"
    RAISED = "raised"
    EXITED = "exited"
    KILLED = "killed"
    TIMEOUT = "timeout"


class ExecutionResult(Struct, frozen=True, kw_only=True, gc=False):
    """The result of a program.

    `exit` is its exit status, 128 + n after signal n, None if we ended it.
    """

    ended: ExitReason
    exit: int | None
    stdout: str = ""
    stderr: str = ""


class GivenPiece(Struct, frozen=True, kw_only=True, gc=False):
    """A piece of a file that checks read: `size` bytes from `start`, with their SHA-256.

    A data set with megabytes of tests for each sample stays in its file until a program runs.
    """

    path: str
    start: int
    size: int
    sha256: str


class Program(Struct, frozen=True, kw_only=True, gc=False):
    """Python code to run in isolation.

    `code` runs first, then `checks` in a process of their own, with the names that `code` defined.
    The program passes if both complete within `wall_s` seconds. Checks find the bytes of a `given`
    piece under the name GIVEN, which the program never sees. `memory_bytes` replaces the limit of
    the sandbox on memory.
    """

    code: str
    checks: str = ""
    stdin: str = ""
    wall_s: float = 10.0
    given: GivenPiece | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET


@freeze
class Isolation:
    """The isolation of generated code from this machine, as a probe found it from within.

    `network` and `writable` are what the code could reach: any network, and which folders. `uid` is
    its user as the kernel sees it, `python` the version that ran it, `limits` what one program may
    use (bytes, seconds, counts).
    """

    name: str
    network: bool
    writable: tuple[str, ...]
    uid: int
    python: str
    limits: Mapping[str, int]


class Judgement(Struct, frozen=True, kw_only=True, gc=False):
    """A judge's grade of an answer, from 0 to 1, where 1 is good; None if it cannot be read."""

    judge: str
    metric: str
    round: int
    value: float | None


@freeze
class Judge:
    """A model that grades the answers of another.

    `base_url` None: the judged endpoint itself, which is reached as the plan says. `name` appears
    in the report and with its judgements. `concurrency` None: that of the plan; `rate_limit` and
    `requests_per_minute` None: no limit. `connection` holds the name of the key's variable, never
    a key.
    """

    name: str
    sampling: SamplingParams
    base_url: str | None = None
    model: str | None = None
    connection: Connection = field(default_factory=Connection)
    extra: Mapping[str, object] = field(default_factory=dict)
    concurrency: int | None = None
    rate_limit: float | None = None
    requests_per_minute: int | None = None


class Question(Struct, frozen=True, kw_only=True, gc=False):
    """One question to a judge about one answer, by one `metric`, in the `round` counted from 1.

    `read` converts what it says to a number from 0 to 1, or None if that cannot be read.
    """

    judge: Judge
    metric: str
    round: int
    prompt: tuple[Message, ...]
    read: Callable[[str], float | None]


@freeze
class JudgeReport:
    """The judgements that a judge gave on a task's answers.

    Counts are of judgements. Of the `planned` ones, `unreadable` held no verdict (`truncated` of
    these were cut), `failed` got no answer, and `missing` were not requested. `traffic` is over all
    sessions.
    """

    name: str
    model: str | None
    base_url: str | None
    planned: int
    unreadable: int
    truncated: int
    failed: int
    missing: int
    traffic: Traffic
