"""Sort the finished runs below a folder into series, oldest first.

All runs of a series have the same task, model, specification, deployment and protocol. Notes name
the runs that are left out.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from serve_eval.frozen import freeze
from serve_eval.schema import MEAN, Metric, Plan, Reference, Report, TaskReport
from serve_eval.series.read_runs import FinishedRun, read_runs
from serve_eval.storage.story_files import name_command
from serve_eval.verdicts.references import spec_text
from serve_eval.verdicts.validity import MAX_MISSING


@freeze
class Night:
    """One run of a series.

    `value` is in points over the scored samples. `paired` is the mean difference to the reference's
    runs, prompt by prompt, in points (negative is worse; None if it was not compared). `judged_by`
    has the reference and the worst value that passes (None: not known) of its verdict.
    """

    run: Path
    started_at: datetime
    value: float
    missing: int
    paired: float | None
    reference: Reference | None
    address: str
    version: str | None
    interval: tuple[float, float] | None = None
    outcome: str = ""
    judged_by: tuple[float, float | None] | None = None


@freeze
class Series:
    """Comparable runs, oldest first. `n` is the number of samples of each run.

    `deployment` has the launcher and its options as text.
    """

    task: str
    model: str
    spec: str
    simulated: bool
    fingerprint: Mapping[str, str]
    metric: Metric
    n: int
    nights: tuple[Night, ...]
    deployment: str = ""

    @property
    def name(self) -> str:
        return f"{self.task} of {self.model}, {self.spec}{' (simulated)' if self.simulated else ''}"


@freeze
class History:
    """The series that were found. `notes` explain which runs were left out or separated."""

    series: tuple[Series, ...]
    notes: tuple[str, ...]


def find_series(folder: Path) -> History:
    """Return the series below a folder. Raises RunFolderError if there is no finished run."""
    return sort_runs(*read_runs(folder))


def sort_runs(runs: Sequence[FinishedRun], notes: Sequence[str] = ()) -> History:
    """Return the series of finished runs. `notes` come before those about the series."""
    notes = [*notes, *_count_left_out(runs)]
    found: dict[SeriesKey, list[tuple[bytes, TaskReport, Night]]] = defaultdict(list)
    apart = find_apart(runs)
    for run in runs:
        for task in run.report.tasks if stands_alone(run) else ():
            if why := _unfit(run.report, task):
                notes.append(f"left out: {run.folder}: {task.result.task}: {why}")
                continue
            night = _night(run, task)
            found[key_of(run, task, apart)].append((run.sessions, task, night))
    series = tuple(_series(key, of_one, notes) for key, of_one in sorted(found.items()))
    return History(series=series, notes=(*notes, *_explain_separation(series)))


def _count_left_out(runs: Sequence[FinishedRun]) -> Iterator[str]:
    """Yield a note on rehearsals, and one for each command whose parts are left out."""
    if rehearsed := sum(run.report.rehearsal for run in runs):
        yield f"left out, because the stand-in answered in these rehearsals: {rehearsed} runs"
    for command, count in sorted(Counter(run.part_of for run in runs if run.part_of).items()):
        made = f"serve-eval {name_command(command)}"
        yield f"left out, because they are parts of results of {made}: {count} runs"


def _unfit(report: Report, task: TaskReport) -> str | None:
    """Return why a result must not be charted, or None if it may be."""
    result = task.result
    if report.plan.integration_test:
        return "an integration test of one sample"
    if report.plan.shard is not None:
        return "a shard, which serve-eval runs merge joins with the others"
    if result.value is None or not math.isfinite(result.value):
        return "no value"
    if result.spared:
        return "stopped early, so its value is partial"
    if result.aggregation != MEAN.name:
        return f"its value is the {result.aggregation}, but the chart needs a mean of scores"
    if result.failed > MAX_MISSING * result.planned:
        return (
            f"{result.failed} of {result.planned} answers are missing, more than {MAX_MISSING:.0%}"
        )
    return None


def _night(run: FinishedRun, task: TaskReport) -> Night:
    verdict, endpoint = task.verdict, run.report.endpoint
    paired, reference = verdict.paired, verdict.reference
    assert task.result.value is not None
    return Night(
        run=run.folder,
        started_at=run.began,
        value=task.result.value,
        missing=task.result.failed,
        paired=(
            None if paired is None or not math.isfinite(paired.difference) else paired.difference
        ),
        reference=task.reference,
        address=endpoint.base_url,
        version=endpoint.info.version,
        interval=task.result.interval,
        outcome=run.find_outcome(task).value,
        judged_by=None if reference is None else (reference, verdict.limit),
    )


def _series(
    key: SeriesKey,
    runs: Sequence[tuple[bytes, TaskReport, Night]],
    notes: list[str],
) -> Series:
    task, model, spec, simulated = key.task, key.model, key.spec, key.simulated
    result, fingerprint = runs[0][1].result, describe_asked(runs[0][1])
    nights: dict[bytes, Night] = {}
    for copied, _, night in runs:
        if copied in nights:
            notes.append(f"left out: {night.run}: {task}: the same run as {nights[copied].run}")
        else:
            nights[copied] = night
    return Series(
        task=task,
        model=model,
        spec=spec,
        simulated=simulated,
        deployment=key.deployment,
        fingerprint=fingerprint,
        metric=_metric(result.metric, runs),
        n=result.planned,
        nights=tuple(sorted(nights.values(), key=lambda night: (night.started_at, str(night.run)))),
    )


def _metric(metric: Metric, runs: Sequence[tuple[bytes, TaskReport, Night]]) -> Metric:
    """Return the metric, with the direction from a reference if one names it."""
    told = [
        r.higher_is_better
        for _, task, _ in runs
        if (r := task.reference) and r.higher_is_better is not None
    ]
    return replace(metric, higher_is_better=told[-1]) if told else metric


def _explain_separation(series: Sequence[Series]) -> list[str]:
    """Return notes on the differences between series that look like one."""
    notes = []
    alike: dict[tuple[str, str, str], list[Series]] = defaultdict(list)
    for one in series:
        alike[one.task, one.model, one.spec].append(one)
    for group in alike.values():
        name = group[0].name.removesuffix(" (simulated)")
        if len({one.simulated for one in group}) > 1:
            notes.append(f"{name}: simulated runs are separate from real ones")
        prints = [one.fingerprint for one in group]
        fields = sorted(
            {field for told in prints for field in told if len({p.get(field) for p in prints}) > 1}
        )
        if fields:
            notes.append(
                f"{name}: {len(group)} series, because their protocols differ: {', '.join(fields)}"
            )
        if len(deployments := {one.deployment for one in group if not one.simulated}) > 1:
            notes.append(
                f"{name}: {len(group)} series, because their deployments differ:"
                f" {'; '.join(sorted(deployments))}"
            )
    return notes


EXTERNAL, SIMULATED = "external", "simulated"
_CHANGING: Final = frozenset(
    {"command", "env", "gpus", "host", "image", "pass_env", "port", "ports", "servers", "weights"}
)
"""Options of launchers that may change from night to night: the place and the build of servers.
Other options, such as their parallelism, make another deployment."""
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
        protocol=msgspec.json.encode(describe_asked(task), order="sorted").decode(),
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
