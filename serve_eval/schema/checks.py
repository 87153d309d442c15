"""Define the results of `check invariants` and `check load`: changed answers, accuracy by load."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from serve_eval.frozen import freeze
from serve_eval.schema.comparison import Agreement, FirstDivergences, SelfFlips
from serve_eval.schema.exchange import Failure, Response
from serve_eval.schema.plan import Spec
from serve_eval.schema.result import ResultHeader
from serve_eval.schema.verdict import VerdictOutcome


@freeze
class CacheUse:
    """The server's figures of its prefix cache, for an arm that must find nothing there.

    Of the compared `prompts`, with `prompt_tokens` in all, `cached` tokens came from the cache in
    the arm and `base_cached` in `base` (None: not reported). `tested` prompts took at least half of
    their tokens from the cache in `base` and computed these in the arm. `unsalted` is the reason
    why the prompts of the arm had no cache_salt of their own (None: they had).
    """

    unsalted: str | None
    prompts: int
    tested: int
    prompt_tokens: int
    cached: int | None
    base_cached: int | None


@freeze
class PressureUse:
    """The fate of old prompts in the cache after `filled` tokens of other prompts.

    The cache has room for `capacity` tokens (None: not known). Of the `prompt_tokens` of the
    compared `prompts`, `before` and `after` came from the cache without and with the other prompts
    (None: not reported); `fewer` prompts took less from it than before. `fate`: most prompts were
    "evicted"; "reloaded", so they came back although the cache has no room for all; still "kept",
    or reloaded too, which nothing shows; "unknown". Of the changed answers, `from_cache` had cached
    tokens, and `foreign` are word for word the answer to another prompt.
    """

    filled: int
    capacity: int | None
    prompts: int
    prompt_tokens: int
    before: int | None
    after: int | None
    fewer: int
    fate: Literal["evicted", "reloaded", "kept", "unknown"]
    from_cache: int
    foreign: int


@freeze
class TurnChanges:
    """The answers to one turn of conversations, counted from 1, that were equal before it.

    Of `compared` conversations, the answer `changed` in the arm, and `own` in the repeat. The same
    history was sent, so that the turn is the first that shows a difference. Of the `prompt_tokens`,
    `cached` came from the cache in the arm and `base_cached` in `base` (None: not reported).
    Against the arm, the scores of `base` `fell` in some conversations and `rose` in others.
    """

    turn: int
    compared: int
    changed: int
    own: int
    prompt_tokens: int
    cached: int | None
    base_cached: int | None
    fell: int = 0
    rose: int = 0


@freeze
class Invariant:
    """A change that should not change any answer, for one task.

    `arm` names the change and `what` describes it. `changed` counts the prompts whose answers it
    changed, against those whose answers change without it; its `endpoint` is the arm. `p_holm` is
    its p after Holm's correction over all arms and tasks; `broken`: `p_holm` is at most the common
    alpha.

    If a healthy server may change answers (the arm `alone`), the p is that of the scores instead:
    from one request at a time to many, they `fell` on one number of prompts and `rose` on another
    (two-sided sign test, mid-p). None: the p is that of changes.

    `cache` is for the arm `cold`, and `pressure` for those with other prompts in the cache (None:
    another arm, or a file of an older version). `not_tested` is the
    reason why an arm that is not broken proves nothing; None if it holds. `turns` are for
    conversations, for which the p of `cold` is also that of scores that fell with cached data.
    """

    task: str
    arm: str
    what: str
    changed: SelfFlips
    agreement: Agreement
    p_holm: float
    broken: bool
    fell: int | None = None
    rose: int | None = None
    cache: CacheUse | None = None
    pressure: PressureUse | None = None
    not_tested: str | None = None
    turns: tuple[TurnChanges, ...] = ()


@freeze
class Invariants(ResultHeader):
    """The properties that hold for one endpoint under any load, order and form of its requests.

    They are stored in invariants.json. `skipped` maps the arms that were not tried to the reason.
    """

    base_url: str
    alpha: float
    results: tuple[Invariant, ...]
    skipped: Mapping[str, str]


class CanaryRecord(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request of a canary pass with everything that came back for it.

    `kind` names the form of its prompt, and `code` is the code that only this prompt has. Each
    attempt that failed is in `failures`; the last one may have given a `response`.
    """

    id: str
    kind: str
    code: str
    chat: bool
    streamed: bool
    response: Response | None = None
    failures: tuple[Failure, ...] = ()


@freeze
class CanaryLeak:
    """The code of the request `source` in a reply to the request `into`.

    `where` names the part of the reply, such as its text or an error message, and `quote` is the
    text around the code. `together_s` is the time that both requests were in flight together; if
    it is negative, `source` had ended that many seconds before `into` began. `own`: the reply also
    has its own code. `request_ids` are the X-Request-IDs of both, in the order of the names.
    `servers` are those that a router named for both (None: it named none).
    """

    source: str
    into: str
    where: str
    quote: str
    together_s: float
    own: bool
    request_ids: tuple[str, str]
    servers: tuple[str | None, str | None]


@freeze
class CanarySuspicion:
    """Parts of codes, at least `length` characters long, in replies to other requests.

    They are parts of `codes` codes, where chance gives `expected`. `p` is the chance of that number
    or more, corrected for the number of lengths. `source` and `into` are an example.
    """

    length: int
    codes: int
    expected: float
    p: float
    source: str
    into: str


@freeze
class CanaryResult(ResultHeader):
    """The result of a canary pass, as it is in canaries.json.

    `own` answers repeat the code of their own request; only they would show that whole answers are
    exchanged. `chance` bounds the probability that any of the `leaks` is an accident. `by_kind`
    has, for each form of prompt, its answers and how many of them repeat their own code.
    `leaking` is the number of requests that received another one's code; `leaks` has a row for
    each code that each of them received. `cached_tokens` of `prompt_tokens` came from the server's
    prefix cache (None: not reported).
    """

    base_url: str
    requests: int
    answers: int
    failures: int
    in_flight: int
    own: int
    by_kind: dict[str, tuple[int, int]]
    chance: float
    leaking: int
    leaks: tuple[CanaryLeak, ...]
    suspicion: CanarySuspicion | None
    prompt_tokens: int
    cached_tokens: int | None


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
