"""Prove that the path which a deployment promises was used, from outside.

Evidence are the counters of engines before and after a run, the reports of an orchestrator, and the
answers with their usage. Each claim is proven, refuted, or unknown.
"""

from serve_eval.evidence.path_proof.findings import apply_path, foresee_path
from serve_eval.evidence.path_proof.kv_transfer import count_moved

__all__ = [
    "apply_path",
    "count_moved",
    "foresee_path",
]
