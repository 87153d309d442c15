"""The size of a batch job that runs a plan with its servers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """The size of a plan's job: nodes, and GPUs and tasks on each of them.

    `whole_nodes`: nobody else may use the nodes. `sbatch_args` are the user's own options in the
    plan, `notes` lines that a reader of the job script should see.
    """

    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int = 1
    whole_nodes: bool = False
    sbatch_args: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
