"""Types that describe which changes of a request changed answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from serve_eval.schema.comparison import Agreement, SelfFlips
from serve_eval.schema.result_header import ResultHeader


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
    reason why an arm that is not broken proves nothing; None if it holds.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariants(ResultHeader):
    """The properties that hold for one endpoint under any load, order and form of its requests.

    They are stored in invariants.json. `skipped` maps the arms that were not tried to the reason.
    """

    base_url: str
    alpha: float
    results: tuple[Invariant, ...]
    skipped: Mapping[str, str]
