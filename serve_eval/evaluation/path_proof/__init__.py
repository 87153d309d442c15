"""Prove that the path which a deployment promises was used, from outside.

Evidence are the counters of engines before and after a run, the reports of an orchestrator, and the
answers with their usage. Each claim is proven, refuted, or unknown.
"""

from serve_eval.evaluation.path_proof.findings import apply_path, foresee_path
from serve_eval.evaluation.path_proof.from_run import ProvenPath, prove_path
from serve_eval.evaluation.path_proof.kv_transfer import count_moved
from serve_eval.evaluation.path_proof.repetition import compare_again, may_compare

__all__ = [
    "ProvenPath",
    "apply_path",
    "compare_again",
    "count_moved",
    "foresee_path",
    "may_compare",
    "prove_path",
]
