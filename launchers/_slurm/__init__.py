"""Run servers as steps of a SLURM allocation."""

__all__ = [
    "allocation",
    "running_steps",
    "srun",
    "step_container",
]
