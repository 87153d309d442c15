"""Join the runs of one deployment that lie in several folders, such as two suites.

Their rows have the name of the run without its folder, unless two of them asked a task alike.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.report.results_table.content import RUN
from serve_eval.series.asked_alike import Key, key_of_column
from serve_eval.series.deployments import ENDPOINT
from serve_eval.storage.file_names import SUITE_RUNS
from serve_eval.verdicts.references import SPEC_KEYS
from serve_eval.verdicts.references.deployed import LAUNCHER

if TYPE_CHECKING:
    from serve_eval.series.measured_runs import MeasuredRun


def join_folders(
    runs: Sequence[MeasuredRun], folders: Sequence[Path]
) -> tuple[list[MeasuredRun], list[str]]:
    """Return runs with the names of their rows, and a note on the rows of several folders.

    `folders` are those that the user named. A run loses the name of its suite, or of its folder
    among these, if all runs of the short name are of one deployment and no two asked one task.
    """
    alike: dict[tuple[str, str], list[int]] = defaultdict(list)
    for i, run in enumerate(runs):
        if short := _shorten(run, folders):
            alike[run.model, short].append(i)
    joined, names = list(runs), list[str]()
    for (_, short), places in alike.items():
        group = [runs[i] for i in places]
        taken = any(run.attributes.get(RUN) == short for run in runs)
        if taken or not (_are_one(group) and not _has_collision(group)):
            continue
        shared: dict[str, str] = {RUN: short}
        for run in group:
            shared |= {name: value for name, value in run.attributes.items() if name != RUN}
        for i in places:
            joined[i] = replace(runs[i], attributes=shared)
        if len({run.attributes[RUN] for run in group}) > 1:
            names.append(short)
    if not names:
        return joined, []
    return joined, [
        "one row has the runs of several folders with one name, deployment and attributes, no two"
        f" of which asked the same: {', '.join(names)}; --all shows each"
    ]


def _shorten(run: MeasuredRun, folders: Sequence[Path]) -> str:
    """Return the name of a run without that of its suite or of the folder that was named.

    It is empty if the name has no more than that.
    """
    name, parts = run.attributes.get(RUN, ""), run.folder.absolute().parts
    if run.folder.parent.name == SUITE_RUNS:
        inside = 1
    else:
        tops = [one.absolute().parts for one in folders]
        above = [len(parts) - len(top) for top in tops if parts[: len(top)] == top]
        inside = max(1, *above) if above else 0
    named = name.split("/")
    return "/".join(named[-inside:]) if 0 < inside < len(named) else ""


def _are_one(runs: Sequence[MeasuredRun]) -> bool:
    """Return True if runs are of one deployment.

    Attributes from users and servers may be missing.
    """
    values: dict[str, set[str | None]] = defaultdict(set)
    for name in {name for run in runs for name in run.attributes if name != RUN}:
        for run in runs:
            value = run.attributes.get(name)
            if value is not None or _is_known(name):
                values[name].add(value)
    return all(len(one) == 1 for one in values.values())


def _is_known(name: str) -> bool:
    """Return True for an attribute that every run of a deployment has, if any has it."""
    return name in (*SPEC_KEYS, LAUNCHER, ENDPOINT) or name.startswith(f"{LAUNCHER}.")


def _has_collision(runs: Sequence[MeasuredRun]) -> bool:
    """Return True if runs of several folders asked one task alike."""
    asked: Mapping[Key, set[str]] = defaultdict(set)
    for run in runs:
        for key in _list_asked(run):
            asked[key].add(run.attributes[RUN])
    return any(len(names) > 1 for names in asked.values())


def _list_asked(run: MeasuredRun) -> list[Key]:
    """Return the tasks of a run; of one without a report, with their numbers of prompts."""
    had = [] if run.report is None else [key_of_column(task) for task in run.report.tasks]
    names = {name for name, _ in had}
    lost = [
        (name, f"planned {run.planned[name].prompts}" if name in run.planned else "")
        for name in run.judged
        if name not in names
    ]
    return had + lost
