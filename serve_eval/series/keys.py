"""Decide which runs belong together: one task, model, specification, deployment and protocol."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec

from serve_eval.protocol.fingerprint import without_scorer_options
from serve_eval.schema import Plan, TaskReport
from serve_eval.series.read_runs import FinishedRun
from serve_eval.verdicts.references import spec_text

EXTERNAL, SIMULATED = "external", "simulated"
_CHANGING: Final = frozenset(
    {"command", "env", "gpus", "host", "image", "pass_env", "port", "ports", "servers", "weights"}
)
"""Options of launchers that may change from night to night: where and of which build servers are.
What they are, such as their parallelism, makes another deployment."""
_CHANGING_ENDINGS: Final = ("_timeout_s", "_dir", "_url", "_port", "_file")


class SeriesKey(NamedTuple):
    """All that runs of one series share. `protocol` is JSON, and `deployment` a text."""

    task: str
    model: str
    spec: str
    simulated: bool
    deployment: str
    protocol: str


def stands_alone(run: FinishedRun) -> bool:
    """Return True for a run of a series: no part of a comparison or check, and no rehearsal."""
    return not run.part_of and not run.report.rehearsal


def key_of(run: FinishedRun, task: TaskReport, apart: frozenset[SeriesKey]) -> SeriesKey:
    """Return the key of a task of a run. `apart` are keys of several endpoints side by side."""
    plan = run.report.plan
    key = SeriesKey(
        task=task.result.task,
        model=plan.model or run.report.endpoint.model or "",
        spec=spec_text(plan.accuracy_spec),
        simulated=plan.launcher.name == SIMULATED,
        deployment=describe_deployment(plan),
        protocol=msgspec.json.encode(
            without_scorer_options(describe_asked(task)), order="sorted"
        ).decode(),
    )
    return key._replace(deployment=run.report.endpoint.base_url) if key in apart else key


def find_apart(runs: Sequence[FinishedRun]) -> frozenset[SeriesKey]:
    """Return the keys whose external runs are of several endpoints that were used side by side.

    They were if one was used again after another. Otherwise the endpoint moved, as one does that
    gets a new port or machine every night.
    """
    addresses: dict[SeriesKey, list[str]] = defaultdict(list)
    for run in sorted(runs, key=lambda one: (one.began, str(one.folder))):
        if not stands_alone(run) or run.report.plan.launcher.name != EXTERNAL:
            continue
        for task in run.report.tasks:
            used = addresses[key_of(run, task, frozenset())]
            if used[-1:] != [run.report.endpoint.base_url]:
                used.append(run.report.endpoint.base_url)
    return frozenset(key for key, used in addresses.items() if len(set(used)) < len(used))


def describe_deployment(plan: Plan) -> str:
    """Return the launcher with the options that make a deployment, as text."""
    launcher = plan.launcher
    if launcher.name in (EXTERNAL, SIMULATED):
        return launcher.name
    options = {
        name: value
        for name, value in sorted(launcher.options.items())
        if name not in _CHANGING and not name.endswith(_CHANGING_ENDINGS)
    }
    shown = (f"{name}={msgspec.json.encode(value).decode()}" for name, value in options.items())
    return " ".join([launcher.name, *shown])


def describe_asked(task: TaskReport) -> dict[str, str]:
    """Return what runs of a series share: the protocol, and the number of answers with repeats."""
    return {**task.fingerprint, "answers": str(task.result.planned)}
