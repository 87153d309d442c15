"""Read which deployments answered in the runs of a reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serve_eval.evaluation.storage.sessions import read_sessions
from serve_eval.schema import Plan
from serve_eval.series.deployments import describe_deployment
from serve_eval.verdicts import references


def list_deployments(runs: Sequence[Path], plans: Sequence[Plan]) -> list[dict[str, str]]:
    """Return the different deployments that answered in runs, each without its specification."""
    found: list[dict[str, str]] = []
    for run, plan in zip(runs, plans, strict=True):
        for one in read_sessions(run):
            known = describe_deployment(plan, one.endpoint, {})
            deployment = {k: v for k, v in known.items() if k not in references.SPEC_KEYS}
            found += [deployment] if deployment not in found else []
    return found


def find_version(run: Path) -> str | None:
    sessions = read_sessions(run)
    return sessions[-1].endpoint.info.version if sessions else None
