"""The Report of a run and its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from serve_eval.schema.attribution import Attribution
from serve_eval.schema.degradation import Degradation
from serve_eval.schema.endpoint import Endpoint
from serve_eval.schema.engine_counts import EngineReport
from serve_eval.schema.execution import Isolation
from serve_eval.schema.judge import JudgeReport
from serve_eval.schema.path import PathFinding
from serve_eval.schema.plan import Plan, Spec
from serve_eval.schema.reference import Reference
from serve_eval.schema.result import TaskResult
from serve_eval.schema.result_header import ResultHeader
from serve_eval.schema.sampling_defaults import SamplingDefaults
from serve_eval.schema.traffic import Load, Traffic
from serve_eval.schema.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongExample:
    """A wrong answer to show: the sample, what was extracted from its answer, and the target."""

    id: str
    answer: str | None
    target: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """One task of a report: what was asked, what was answered, and the verdict.

    `isolations` are those in which answers ran, in the order of their first use. `degradations`
    show from when on the run became worse, `judges` the judges of the answers, `attribution` the
    workers that took part in them (None: not known). `reference_breakdown` is the result's
    breakdown of the reference's scores on the same prompts, if they are known.
    """

    spec: Spec
    version: int
    dataset: Mapping[str, object]
    fingerprint: Mapping[str, str]
    result: TaskResult
    traffic: Traffic
    reference: Reference | None
    verdict: Verdict
    isolations: tuple[Isolation, ...] = ()
    degradations: tuple[Degradation, ...] = ()
    judges: tuple[JudgeReport, ...] = ()
    attribution: Attribution | None = None
    reference_breakdown: Mapping[str, object] = field(default_factory=dict)
    example: WrongExample | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EffortSeen:
    """The answers of a task that was asked with an effort.

    `thinking` of the `answers` have thoughts, or tokens that the server counts as thoughts.
    `median_tokens` is the median of their generated tokens, thoughts included (None: the server
    counts none). `refused` requests failed since the server refused a field of the effort, and
    `refusal` is its first message.
    """

    task: str
    answers: int
    thinking: int
    median_tokens: float | None = None
    refused: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report(ResultHeader):
    """The report of a run, as stored in report.json; every other output is made from it.

    `loads` has one entry per session with requests. `engine` is what the engines of the servers
    counted during all sessions (None: no server reports it). `path` has a finding for each part of
    the path that the plan or the launcher expects. `unproven_answers` count although nothing proves
    that they belong to their samples. `sampling_defaults` is what the endpoint puts in the place of
    sampling fields that requests leave out (None: not probed). `effort` has
    what came of the effort that was asked for, by task.
    """

    plan: Plan
    endpoint: Endpoint
    environment: Mapping[str, object]
    tasks: tuple[TaskReport, ...]
    loads: tuple[Load, ...]
    warnings: tuple[str, ...] = ()
    engine: EngineReport | None = None
    path: tuple[PathFinding, ...] = ()
    unproven_answers: int = 0
    effort: tuple[EffortSeen, ...] = ()
    sampling_defaults: SamplingDefaults | None = None
