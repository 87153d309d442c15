"""Read which deployments answered in the runs of a reference, and what they added to requests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from serve_eval.errors import RunFolderError
from serve_eval.evaluation.capabilities.sampling import list_kept
from serve_eval.schema import Plan, Task
from serve_eval.series.deployments import describe_deployment
from serve_eval.storage.sessions import read_defaults, read_sessions
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


def list_added(runs: Sequence[Path], task: Task) -> list[str] | None:
    """Return the sampling fields that the servers of runs added, None if one was not probed.

    Raises RunFolderError if they are not the same for all runs, whose mean would mix two settings.
    """
    found = [read_defaults(run) for run in runs]
    if None in found:
        return None
    added = [sorted(list_kept(one, task)) for one in found]
    for run, names in zip(runs, added, strict=True):
        if names != added[0]:
            one, other = (", ".join(of_run) or "nothing" for of_run in (names, added[0]))
            raise RunFolderError(
                f"{task.name}: in {run}, the server added {one} to requests, and {other} in"
                f" {runs[0]}",
                hint="Take all runs at one server, with the same server_defaults.",
            )
    return added[0]
