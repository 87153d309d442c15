"""Types that describe a comparison of two endpoints at several numbers of requests in flight."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serve_eval.schema.plan import Spec
from serve_eval.schema.result_header import ResultHeader
from serve_eval.schema.verdict import VerdictOutcome


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
