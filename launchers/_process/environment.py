"""The environment of servers: the variables that they need and those that a plan names.

Of keys, servers get only that of the hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from serve_eval.errors import PlanError
from serve_eval.processes.child_process import inherit as inherited_by_any
from serve_eval.processes.child_process import secret
from serve_eval.secret_signs import holds_secret

NAMES = frozenset(
    {"HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"}  # servers load gated models with it
    | {
        "LLM_MODELS_ROOT",
        "PMIX_PREFIX",
        "PMIX_INSTALL_PREFIX",
        "FORCE_DETERMINISTIC",
        "DO_NOT_TRACK",
        "SLURM_CONF",
        "MUNGE_SOCKET",
        "CONTAINER_HOST",
    }
    | {
        "CC",
        "CXX",
        "CPATH",
        "C_INCLUDE_PATH",
        "CPLUS_INCLUDE_PATH",
        "LIBRARY_PATH",
    }  # kernels are compiled at the start
)
PREFIXES = (
    *(
        "CUDA_",
        "CUDNN_",
        "CUBLAS_",
        "NVIDIA_",
        "NVCC_",
        "NVSHMEM_",
        "NCCL_",
        "UCX_",
        "UCC_",
        "NIXL_",
        "GLOO_",
        "FI_",
    ),
    *(
        "HIP_",
        "HSA_",
        "ROCR_",
        "ROCM_",
        "TRTLLM_",
        "TLLM_",
        "TENSORRT_",
        "FLASHINFER_",
        "VLLM_",
        "SGLANG_",
        "SGL_",
    ),
    *(
        "TORCH_",
        "TORCHINDUCTOR_",
        "PYTORCH_",
        "TRITON_",
        "HF_",
        "TRANSFORMERS_",
        "TOKENIZERS_",
        "SAFETENSORS_",
    ),
    *(
        "OMP_",
        "GOMP_",
        "KMP_",
        "MKL_",
        "OPENBLAS_",
        "NUMEXPR_",
        "GGML_",
        "LLAMA_",
        "PRTE_",
        "OPAL_",
    ),
    *("OMPI_MCA_", "PMIX_MCA_", "MPI4PY_"),
    *("DOCKER_", "CONTAINERS_", "PODMAN_", "ENROOT_", "PYXIS_"),
)
"""Prefixes of variables that engines, their libraries, and clients of container engines read."""
FOREIGN = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "MPI_", "I_MPI_", "HYDRA_", "MPICH_", "MV2_")
"""Prefixes that a server inside a SLURM step or under mpirun would inherit. With them it believes
that it is a rank of that job, and hangs."""
MPI_SETTINGS = ("OMPI_MCA_*", "PMIX_MCA_*", "PMIX_PREFIX", "PMIX_INSTALL_PREFIX")
"""Settings of users within these prefixes. They mark no rank, except those that mpirun writes."""
FORGET = (
    f"for name in {' '.join(f'${{!{prefix}@}}' for prefix in FOREIGN)}; "
    f"do case $name in {'|'.join(MPI_SETTINGS)}) ;; *) unset $name ;; esac; done"
)
"""Removes these variables in bash, for servers that SLURM starts instead of us."""
OF_MPIRUN = re.compile(
    r"OMPI_MCA_(ess\w*|pmix|initial_wdir|num_procs|cpu_type|PREFIXES|mpi_oversubscribe|shmem_RUNTIME_QUERY_hint"
    r"|orte_(ess_\w+|app_num|bound_at_launch|hnp_uri|jobfam_session_dir|launch|local_daemon_uri|num_nodes"
    r"|precondition_transports|tmpdir_base|top_session_dir))|PMIX_MCA_mca_base_component_show_load_errors"
)
"""Variables that look like settings but come from mpirun of Open MPI 4 and 5."""
RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
OF_WRAPPER = "TLLM_SPAWN_PROXY_PROCESS"
"""With this variable, a server waits for another process that leads its ranks."""
OURS = ("CUDA_VISIBLE_DEVICES",)
"""Variables that a plan must not set: GPUs are checked and locked under other numbers."""
VARIABLE = "SERVE_EVAL_PASS_ENV"
"""Names further variables for servers and for commands that ask the cluster, separated by blanks or
commas; a * at the end of a name matches its rest."""
MARK = "SERVE_EVAL_LAUNCH"
"""Variable that marks every process of a launch, however far from us it was started."""


def inherit(environ: Mapping[str, str], pass_env: Iterable[str] = ()) -> dict[str, str]:
    """Return our variables that a server gets: those it needs and those named for it."""
    wanted = [*pass_env, *list_named(environ)]
    found = inherited_by_any(environ, wanted, names=NAMES, prefixes=PREFIXES)
    ranked = any(name in environ for name in RANK)
    gone = {name for name in found if name == OF_WRAPPER or (ranked and OF_MPIRUN.fullmatch(name))}
    return {name: value for name, value in found.items() if name in wanted or name not in gone}


def for_helpers() -> dict[str, str]:
    """Return the variables for commands that ask the machine or cluster, such as nvidia-smi."""
    names, prefixes = {"MUNGE_SOCKET"}, ("SLURM_", "CUDA_", "NVIDIA_")
    return inherited_by_any(os.environ, list_named(os.environ), names=names, prefixes=prefixes)


def list_named(environ: Mapping[str, str]) -> list[str]:
    """Return the names listed in SERVE_EVAL_PASS_ENV."""
    return environ.get(VARIABLE, "").replace(",", " ").split()


def check(env: Mapping[str, str | None], where: str) -> None:
    """Raise PlanError for a variable that the launcher sets or that looks like a secret.

    Plans are saved and shown.
    """
    for name, value in env.items():
        if name in OURS:
            raise PlanError(
                f"{where}.{name}: the launcher sets this variable",
                hint="Choose GPUs with launcher.gpus.",
            )
        if value and (secret(name) or holds_secret(value)):
            hint = (
                f"Export {name}: servers inherit it."
                if name in NAMES
                else f"Export {name}, and name it in pass_env."
            )
            raise PlanError(f"{where}.{name}: a plan must not contain a secret", hint=hint)


def check_names(names: Iterable[str], where: str) -> None:
    """Raise PlanError for an invalid name and for a variable that the launcher sets.

    The error does not contain a value.
    """
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", name):
            raise PlanError(
                f"{where}: {name.partition('=')[0]}: names only; set values with env,"
                " but never secrets"
            )
        if name in OURS:
            raise PlanError(
                f"{where}: {name}: the launcher sets this variable",
                hint="Choose GPUs with launcher.gpus.",
            )


def check_words(words: Iterable[str], where: str) -> None:
    """Raise PlanError, without the value, for a word that looks like a secret."""
    for word in words:
        name, _, value = word.rpartition("=")
        if holds_secret(word) or (value and secret(name.lstrip("-"))):
            raise PlanError(
                f"{where}: {name or 'one of its words'}: a plan must not contain a secret",
                hint="Export it as a variable, and name that in pass_env.",
            )


def over(environ: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return `environ` with the changes; None removes a variable."""
    merged = {**environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}
