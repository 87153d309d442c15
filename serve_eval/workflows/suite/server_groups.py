"""Group the runs of a suite by the server that they need."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.evaluation.shared_server import server_key
from serve_eval.schema import SuiteRun


def groups(runs: Sequence[SuiteRun]) -> list[list[SuiteRun]]:
    """Group runs by the server that they need, in the order of first appearance.

    A running endpoint counts as a server, so its runs follow each other.
    """
    found: dict[str, list[SuiteRun]] = {}
    for run in runs:
        found.setdefault(server_key(run.plan), []).append(run)
    return list(found.values())
