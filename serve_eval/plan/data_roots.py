"""Tell tasks where the data of a plan is, and if fewer rows than usual are enough."""

from __future__ import annotations

from pathlib import Path

from serve_eval.schema import DataRoots, Plan

DATASET = "dataset"
"""Name in `allow_mismatch` that accepts data other than the published set, or a part of it."""


def find_roots(plan: Plan) -> DataRoots:
    """Return the places where the tasks of a plan look for their data."""
    return DataRoots(
        roots=tuple(map(Path, plan.dataset_roots)),
        allow_hub=plan.allow_hub,
        allow_fewer=DATASET in plan.allow_mismatch,
    )
