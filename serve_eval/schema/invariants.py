"""Define which changes of a request changed answers, and which answers leaked into others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from msgspec import Struct

from serve_eval.frozen import freeze
from serve_eval.schema.comparison import Agreement, SelfFlips
from serve_eval.schema.exchange import Failure, Response
from serve_eval.schema.result import ResultHeader


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
