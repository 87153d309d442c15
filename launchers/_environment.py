"""The environment that servers start in."""

from __future__ import annotations

from collections.abc import Mapping

FOREIGN = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "MPI_", "I_MPI_", "HYDRA_", "MPICH_", "MV2_")
"""Prefixes of what a server inside a SLURM step or under mpirun inherits: with them it takes itself for a rank of that
job, and hangs."""
UNSURE = ("UCX_TLS", "UCX_NET_DEVICES")
"""Chosen for the machine as a whole; the launcher sets its own where it matters."""
MARK = "SERVE_EVAL_LAUNCH"
"""A variable by which every process of a launch is known, however far from us it was started."""


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """What may be inherited."""
    return {k: v for k, v in environ.items() if not k.startswith(FOREIGN) and k not in UNSURE}


def over(environ: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """`environ` with the changes; None removes."""
    merged = {**environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}
