"""Test that a comparison does not pass if a side did not use the path that it was to prove."""

from __future__ import annotations

from pathlib import Path

from serve_eval.schema import Spec, VerdictOutcome
from serve_eval.workflows.compare.verdict import compare_folders
from tests.evidence.path_proof.deployments import Deployment, PathFault, run


def test_a_comparison_names_the_side_whose_path_is_not_proven(tmp_path: Path) -> None:
    for side, fault in (("a", PathFault.NONE), ("b", PathFault.BYPASS)):
        run(Deployment(fault), tmp_path / side, expect=("kv_transfer",))
    rule = Spec(name="paired")
    sound = compare_folders(tmp_path / "a", tmp_path / "a", rule)
    assert sound.tasks[0].verdict.outcome is VerdictOutcome.PASS
    found = compare_folders(tmp_path / "a", tmp_path / "b", rule)
    verdict = found.tasks[0].verdict
    assert (verdict.outcome, found.exit_code) == (VerdictOutcome.INCONCLUSIVE, 3)
    assert verdict.reasons[-1].startswith(
        "path not proven: kv_transfer: B: context servers had 0 of 24 requests; "
    )
