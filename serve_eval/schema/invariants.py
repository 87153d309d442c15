"""Keep which changes of a request changed answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serve_eval.schema.comparison import Agreement, SelfFlips


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariant:
    """A change that should change no answer, for one task: `arm` names it and `what` tells it.

    `changed` counts the prompts that it made answered otherwise, beside those that are answered
    otherwise when nothing is changed; its `endpoint` is the arm. `p_holm` is its p after Holm's
    correction over all arms and tasks; `broken`: that is the alpha of all together at most.

    Where a sound server may change answers (the arm `alone`), the p is that of the scores instead:
    they `fell` from one request at a time to many in so many prompts and `rose` in so many
    (two-sided sign test, mid-p). None: by changes.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Invariants:
    """What holds of one endpoint whatever the load, the order and the form of its requests: what
    invariants.json holds. `skipped` says which arms were not tried, and why.
    """

    schema_version: int
    model: str | None
    base_url: str
    alpha: float
    results: tuple[Invariant, ...]
    skipped: Mapping[str, str]
    exit_code: int
    started_at: str
    wall_s: float
