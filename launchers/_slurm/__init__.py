"""Run servers as steps of a SLURM allocation."""
