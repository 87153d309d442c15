"""Say what a run was to ask whose report lacks tasks, since an error ended it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from serve_eval.errors import RunFolderError, ServeEvalError
from serve_eval.protocol.shared import build_task
from serve_eval.schema import Metric, Plan, Spec, Task
from serve_eval.series.deployments import SEED, read_seed
from serve_eval.storage.run_folder import read_fingerprints, read_plan


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedTask:
    """A task that a run was to ask.

    `fingerprint` is None if the run ended before its data were read, and `prompts` if their number
    is not known either. `seed` is the sampling seed that was to be sent, "" for none.
    """

    spec: Spec
    metric: Metric
    fingerprint: Mapping[str, str] | None = None
    prompts: int | None = None
    repeats: int = 1
    seed: str = ""

    @property
    def samples(self) -> int | None:
        """The number of samples, of which a prompt has one for each time that it is asked."""
        return None if self.prompts is None else self.prompts * self.repeats


def list_planned(folder: Path, plan: Plan) -> dict[str, PlannedTask]:
    """Return the tasks of a plan by name, with what the folder of its run knows of them."""
    try:
        saved, prints = read_plan(folder).tasks, read_fingerprints(folder)
    except RunFolderError:
        saved, prints = (), {}
    return {
        spec.name: _describe(spec, plan, prints.get(spec.name) if spec in saved else None)
        for spec in plan.tasks
    }


def _describe(spec: Spec, plan: Plan, known: Mapping[str, str] | None) -> PlannedTask:
    try:
        task = build_task(spec)
    except ServeEvalError:  # its code or its cases are elsewhere
        task = None
    return PlannedTask(
        spec=spec,
        metric=Metric() if task is None else task.metric,
        fingerprint=known,
        prompts=_count_prompts(spec, plan, known, task),
        repeats=plan.times(spec.name),
        seed=_find_seed(known, task),
    )


def _find_seed(known: Mapping[str, str] | None, task: Task | None) -> str:
    if known is not None:
        return read_seed(known)
    seed = None if task is None else task.protocol.get(SEED)
    return "" if seed is None else str(seed)


def _count_prompts(
    spec: Spec, plan: Plan, known: Mapping[str, str] | None, task: Task | None
) -> int | None:
    asked = ("" if known is None else known.get("samples", "")).partition(" ")[0]
    if asked.isdecimal():
        return int(asked)
    given = spec.options.get("num_samples")
    usual = None if task is None else task.hypothesis.num_samples
    counts = [plan.limit, given if isinstance(given, int) else usual]
    return min((one for one in counts if one is not None), default=None)
