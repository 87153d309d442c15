"""Keep the truth about a run: the Report and its tasks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from serve_eval.schema.attribution import Attribution
from serve_eval.schema.degradation import Degradation
from serve_eval.schema.endpoint import Endpoint
from serve_eval.schema.execution import Isolation
from serve_eval.schema.judge import JudgeReport
from serve_eval.schema.plan import Plan, Spec
from serve_eval.schema.reference import Reference
from serve_eval.schema.result import TaskResult
from serve_eval.schema.traffic import Load, Traffic
from serve_eval.schema.verdict import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """One task of a report: what was asked, what came back, what is said of it. `isolations` are
    those in which answers were run, in the order of their first use; `degradations` tell from when
    on the run turned worse, `judges` who was asked about the answers, `attribution` which worker
    had a hand in them (None: not known).
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The truth about a run: what report.json holds and every other output is made from. `loads`
    has one entry per session that asked something.
    """

    schema_version: int
    plan: Plan
    endpoint: Endpoint
    environment: Mapping[str, object]
    tasks: tuple[TaskReport, ...]
    loads: tuple[Load, ...]
    exit_code: int
    started_at: str
    wall_s: float
    warnings: tuple[str, ...] = ()
