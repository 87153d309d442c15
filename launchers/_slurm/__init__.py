"""Run servers as steps of a SLURM allocation."""

__all__ = [
    "allocation",
    "node_placement",
    "running_steps",
    "srun",
    "step_container",
]
