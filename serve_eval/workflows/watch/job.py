"""What a watch is asked to do, and what its rounds share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from serve_eval.checks.check import Check
from serve_eval.evaluation.results.scoring import ScoringProcesses
from serve_eval.schema import Plan
from serve_eval.workflows.watch import record
from serve_eval.workflows.watch.alarming import Delivery
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.pool import QuestionPool
from serve_eval.workflows.watch.record import State

if TYPE_CHECKING:
    from serve_eval.workflows.watch.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchJob:
    """What is watched and how. `pool` is the task's; None: `prompts` generated questions.
    `timeout_s` bounds each request. `rounds` ends the watch after so many (None: never), `ends`: an
    alarm ends it.
    """

    plan: Plan
    pool: QuestionPool | None
    prompts: int
    rules: WatchRules
    tokens: int
    smoke: bool
    every_s: float
    rounds: int | None
    timeout_s: float
    seed: int | None
    ends: bool
    delivery: Delivery

    @property
    def base_url(self) -> str:
        """Where the endpoint is."""
        return str(self.plan.launcher.options["base_url"])

    @property
    def bound(self) -> dict[str, Any]:
        """What must not change while a watch goes on in its folder."""
        asked = {"questions": self.prompts} if self.pool is None else dict(self.pool.fingerprint)
        rules = record.plain(self.rules)
        if not self.rules.round_means:
            del rules["round_means"]  # which folders of older versions do not have
        return {"base_url": self.base_url, "asked": asked, "rules": rules}

    def limit(self, plan: Plan) -> Plan:
        """Return a plan by which each request is sent once: what fails says how available the
        endpoint is.
        """
        limits = replace(
            plan.limits,
            max_attempts=1,
            connect_timeout_s=self.timeout_s,
            stall_timeout_s=self.timeout_s,
            sample_timeout_s=self.timeout_s,
        )
        return replace(plan, limits=limits)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchSession:
    """Carries what travels together through the rounds of a watch. `plan` has the model and the
    limits of its requests; `pool` is what is asked, and `checks` are those of its smoke tests.
    """

    job: WatchJob
    plan: Plan
    folder: Path
    state: State
    pool: QuestionPool
    checks: list[Check]
    scoring: ScoringProcesses
    environ: Mapping[str, str]
    metrics: Metrics | None
    notify: Callable[[str], None]
