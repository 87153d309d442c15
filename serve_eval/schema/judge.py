"""Describe judges: models that grade the answers of another model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from serve_eval.schema.plan import Connection
from serve_eval.schema.sample import Message, SamplingParams
from serve_eval.schema.traffic import Traffic


class Judgement(Struct, frozen=True, kw_only=True, gc=False):
    """What a judge said of an answer, as a number between 0 and 1 where 1 is good; None where it
    cannot be read.
    """

    judge: str
    metric: str
    round: int
    value: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Judge:
    """A model that says what answers of another are worth. `base_url` None: the endpoint that is
    judged itself, which is then reached as the plan says. `name` stands in the report and with what
    it said. `concurrency` None: that of the plan; `rate_limit` None: none. `connection` holds the
    name of the key's variable, never a key.
    """

    name: str
    sampling: SamplingParams
    base_url: str | None = None
    model: str | None = None
    connection: Connection = field(default_factory=Connection)
    extra: Mapping[str, object] = field(default_factory=dict)
    concurrency: int | None = None
    rate_limit: float | None = None


class Question(Struct, frozen=True, kw_only=True, gc=False):
    """What a judge is asked of one answer: by one `metric`, for the `round`-th time from 1 on.
    `read` makes a number between 0 and 1 of what it says, or None where that cannot be read.
    """

    judge: Judge
    metric: str
    round: int
    prompt: tuple[Message, ...]
    read: Callable[[str], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeReport:
    """What was asked of a judge of a task's answers. Counts are of judgements: of the `planned`
    ones, `unreadable` held no verdict (`truncated`: so many of these were cut), `failed` got no
    answer, and `missing` were not asked for. `traffic` is over all sessions.
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
