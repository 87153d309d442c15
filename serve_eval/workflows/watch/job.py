"""The job of a watch, and the session that its rounds share."""

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
from serve_eval.workflows.watch.reference import WatchReference

if TYPE_CHECKING:
    from serve_eval.workflows.watch.metrics import Metrics


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchJob:
    """The endpoint to watch, and how to watch it.

    `pool` holds the task's prompts; if it is None, the watch generates `prompts` questions.
    `reference` has the probes of each round (None: none).
    `tokens` is the budget of a round. `timeout_s` limits each request. The watch ends after
    `rounds` rounds (None: never) and, with `ends`, after an alarm.
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
    reference: WatchReference | None = None

    @property
    def base_url(self) -> str:
        """The base URL of the endpoint."""
        return str(self.plan.launcher.options["base_url"])

    @property
    def bound(self) -> dict[str, Any]:
        """The settings that must not change as long as a watch uses its folder."""
        asked = {"questions": self.prompts} if self.pool is None else dict(self.pool.fingerprint)
        rules = record.plain(self.rules)
        if not self.rules.round_means:
            del rules["round_means"]  # Folders of older versions do not have it.
        if not self.rules.baseline_hours:
            del rules["baseline_hours"]  # The same.
        bound = {"base_url": self.base_url, "asked": asked, "rules": rules}
        if self.reference is not None:
            bound["verify_reference"] = {"sha256": self.reference.digest}
        return bound

    def limit(self, plan: Plan) -> Plan:
        """Return the plan without retries: failures measure the availability of the endpoint."""
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
    """The objects that the rounds of a watch share.

    `plan` has the model and the limits of the requests. `checks` are those of the smoke tests.
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
