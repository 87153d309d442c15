"""Types that describe a check of tool calls and guided decoding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from serve_eval.schema.result import ResultHeader

ToolForm = Literal["whole", "stream"]
"""The form of an answer: one body, or an event stream."""
ToolAgainst = Literal["threshold", "lowest load", "whole answer", "reference", "itself"]
"""The other side of a comparison: a threshold, another pass, or an earlier check."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolProbe:
    """A kind of request, or a field, with what the endpoint did with it.

    IGNORED is a field that should be refused and was not.
    """

    name: str
    outcome: Literal["PASS", "FAIL", "IGNORED", "UNSUPPORTED"]
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
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
