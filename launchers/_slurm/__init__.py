"""Run servers as steps of a SLURM allocation."""

__all__ = ["allocation", "node_placement", "rank_tasks", "running_steps", "srun", "step_container"]
