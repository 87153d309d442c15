"""Types that describe judges: models that grade the answers of another model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from serve_eval.schema.plan import Connection
from serve_eval.schema.sample import Message, SamplingParams
from serve_eval.schema.traffic import Traffic


class Judgement(Struct, frozen=True, kw_only=True, gc=False):
    """A judge's grade of an answer, from 0 to 1, where 1 is good; None if it cannot be read."""

    judge: str
    metric: str
    round: int
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
