"""Define accuracy over the number of requests in flight, of one endpoint or of two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from serve_eval.frozen import freeze
from serve_eval.schema.comparison import FirstDivergences
from serve_eval.schema.plan import Spec
from serve_eval.schema.result import ResultHeader
from serve_eval.schema.verdict import VerdictOutcome

LoadOutcome = Literal[
    "lowest", "holds", "worse", "better", "likely worse", "likely better", "fails", "gave up"
]
"""The state of a load against the lowest one: proved worse or better; likely so, once another load
is proved; more requests without an answer; or a pass that could not be finished."""


@freeze
class LoadPoint:
    """One task at one load, paired prompt by prompt with the lowest load.

    `scored` prompts have the `value` in points, with a 95 % `interval` (None: the metric has none).
    Of `paired` prompts with a score at both loads, `lost` fell and `won` rose; `p` is exact and
    two-sided, `p_holm` corrected over all loads and tasks. `excluded` is the loss in points that is
    excluded, at 95 % (None: not known). `failed` prompts have no score: `failed_more` of them have
    one at the lowest load, and `failed_less` have one here alone.

    `in_flight` is the largest number of requests that were in flight. `ttft_s` has the median and
    the 99th percentile; `right_per_s` are the right answers per second (None: not a share). For the
    load asked first these three are of its repeat, since it alone found no cached prompts.
    `changed` answers differ from those at the lowest load, and part at `places`.
    """

    load: int
    outcome: LoadOutcome
    scored: int
    failed: int
    value: float | None
    interval: tuple[float, float] | None
    paired: int = 0
    lost: int = 0
    won: int = 0
    p: float = 1.0
    p_holm: float = 1.0
    excluded: float | None = None
    failed_more: int = 0
    failed_less: int = 0
    p_failures: float = 1.0
    in_flight: int = 0
    ttft_s: Mapping[str, float] | None = None
    right_per_s: float | None = None
    changed: int = 0
    places: FirstDivergences | None = None


@freeze
class LoadTime:
    """The first asking of a load against its repeat at the end.

    `changed`: the endpoint changed over time. `doubtful`: its p is at most .05 before any
    correction, so that a loss at one load may be one over time.
    """

    load: int
    lost: int
    won: int
    p: float
    p_holm: float
    changed: bool
    doubtful: bool


@freeze
class LoadTask:
    """One task over all loads.

    `q` is Cochran's statistic with `df` and `q_p` (None: fewer than two loads, or nothing varied).
    `broken` are the loads that are broken by their scores, `failing` those whose requests fail more
    often than at the best load; `words` says so. `time` is None without a repeat.
    """

    task: str
    points: tuple[LoadPoint, ...]
    q: float | None
    df: int
    q_p: float | None
    time: LoadTime | None
    broken: tuple[int, ...]
    failing: tuple[int, ...]
    words: str


@freeze
class LoadStep:
    """A load that a bisection asked, and what it found there.

    `against_good` and `against_bad` have the prompts that fell and rose from the sound end to this
    load, and from this load to the broken end, over `askings` askings.
    """

    load: int
    askings: int
    finding: Literal["sound", "broken", "undecided"]
    against_good: tuple[int, int]
    against_bad: tuple[int, int]


@freeze
class LoadBracket:
    """The place at which a bisection found the answers of a task to break.

    They are sound at `good` and broken at `bad`. `level` is the chance that the bracket is wrong,
    if the fault begins at one load and stays. `undecided` is a load between that could not be
    decided (None: there is none).
    """

    task: str
    good: int
    bad: int
    level: float
    steps: tuple[LoadStep, ...]
    undecided: int | None


@freeze
class LoadSurface(ResultHeader):
    """The accuracy of an endpoint over the number of requests in flight, as stored in load.json.

    `order` are the loads in the order of asking and `seed` is that of both orders. `requests` are
    the prompts that were asked, over all passes. `bracket` is of a bisection.
    """

    base_url: str
    alpha: float
    order: tuple[int, ...]
    seed: int
    tasks: tuple[LoadTask, ...]
    bracket: LoadBracket | None
    requests: int
    warnings: tuple[str, ...] = ()


@freeze
class TaskAtLoad:
    """One task, answered by A and by B at one load.

    `a` and `b` are values in points. `lost` and `won` count the prompts whose score fell and rose
    from A to B, `failed` those without an answer of A and of B. `p` is that of the rule (None: it
    has none), and `p_holm` is corrected over all loads and tasks (None: the rule is not corrected).
    """

    load: int
    task: str
    a: float | None
    b: float | None
    lost: int
    won: int
    failed: tuple[int, int]
    outcome: VerdictOutcome
    p: float | None
    p_holm: float | None = None


@freeze
class LoadComparison(ResultHeader):
    """The comparison at all loads, as stored in load_comparison.json.

    `order` has the loads as they were asked, and `words` say for each task where B is worse.
    `warnings` name the loads whose answers are all of an earlier session.
    """

    rule: Spec
    order: tuple[int, ...]
    tasks: tuple[TaskAtLoad, ...]
    words: Mapping[str, str]
    warnings: tuple[str, ...] = ()
