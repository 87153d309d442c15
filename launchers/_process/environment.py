"""The environment that servers start in: what they need of ours, what a plan names, and no key but
that of the hub.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping

from serve_eval.errors import PlanError
from serve_eval.processes.environment import inherit as inherited_by_any
from serve_eval.processes.environment import secret

NAMES = frozenset(
    {"HF_TOKEN", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"}  # a server loads gated models with it
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
"""Read by engines, their libraries, and the clients of container engines."""
FOREIGN = ("OMPI_", "PMIX_", "PMI_", "SLURM_", "MPI_", "I_MPI_", "HYDRA_", "MPICH_", "MV2_")
"""Prefixes of what a server inside a SLURM step or under mpirun would inherit: with them it takes
itself for a rank of that job, and hangs."""
MPI_SETTINGS = ("OMPI_MCA_*", "PMIX_MCA_*", "PMIX_PREFIX", "PMIX_INSTALL_PREFIX")
"""Of these a user makes settings: they mark no rank, but for those that mpirun writes."""
FORGET = (
    f"for name in {' '.join(f'${{!{prefix}@}}' for prefix in FOREIGN)}; "
    f"do case $name in {'|'.join(MPI_SETTINGS)}) ;; *) unset $name ;; esac; done"
)
"""Takes them away in a bash, where it is not us who start the server but SLURM."""
OF_MPIRUN = re.compile(
    r"OMPI_MCA_(ess\w*|pmix|initial_wdir|num_procs|cpu_type|PREFIXES|mpi_oversubscribe|shmem_RUNTIME_QUERY_hint"
    r"|orte_(ess_\w+|app_num|bound_at_launch|hnp_uri|jobfam_session_dir|launch|local_daemon_uri|num_nodes"
    r"|precondition_transports|tmpdir_base|top_session_dir))|PMIX_MCA_mca_base_component_show_load_errors"
)
"""What mpirun of Open MPI 4 and 5 says to its ranks in the form of settings."""
RANK = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK")
OF_WRAPPER = "TLLM_SPAWN_PROXY_PROCESS"
"""With it a server waits for another process that leads its ranks."""
OURS = ("CUDA_VISIBLE_DEVICES",)
"""What a plan may not set: GPUs would be shared that are checked and locked under other numbers."""
VARIABLE = "SERVE_EVAL_PASS_ENV"
"""Names what servers and the commands that tell of the cluster get besides, separated by blanks or
commas; a * at the end of one stands for the rest of a name."""
SECRET_VALUE = re.compile(r"\b(?:hf_|sk-|nvapi-|ghp_)[A-Za-z0-9]{16}|://[^/@\s]*:[^/@\s]+@")
"""How tokens and keys begin, and a password in an address."""
MARK = "SERVE_EVAL_LAUNCH"
"""A variable by which every process of a launch is known, however far from us it was started."""


def inherit(environ: Mapping[str, str], pass_env: Iterable[str] = ()) -> dict[str, str]:
    """Return the variables of ours that a server gets: those it needs, and those named for it."""
    wanted = [*pass_env, *list_named(environ)]
    found = inherited_by_any(environ, wanted, names=NAMES, prefixes=PREFIXES)
    ranked = any(name in environ for name in RANK)
    gone = {name for name in found if name == OF_WRAPPER or (ranked and OF_MPIRUN.fullmatch(name))}
    return {name: value for name, value in found.items() if name in wanted or name not in gone}


def for_helpers(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables for a command that asks the machine or the cluster, such as nvidia-smi
    and squeue.
    """
    names, prefixes = {"MUNGE_SOCKET"}, ("SLURM_", "CUDA_", "NVIDIA_")
    return inherited_by_any(environ, list_named(environ), names=names, prefixes=prefixes)


def list_named(environ: Mapping[str, str]) -> list[str]:
    """Return the names that the variable of that purpose has."""
    return environ.get(VARIABLE, "").replace(",", " ").split()


def check(env: Mapping[str, str | None], where: str) -> None:
    """Raises PlanError for a variable that the launcher sets, and for one that looks like a secret:
    plans are saved and shown.
    """
    for name, value in env.items():
        if name in OURS:
            raise PlanError(
                f"{where}.{name}: is set by the launcher",
                hint="launcher.gpus says which GPUs are used.",
            )
        if value and (secret(name) or SECRET_VALUE.search(value)):
            hint = (
                f"Export {name}: servers get it."
                if name in NAMES
                else f"Export {name}, and name it in pass_env."
            )
            raise PlanError(f"{where}.{name}: a plan holds no secret", hint=hint)


def check_names(names: Iterable[str], where: str) -> None:
    """Raises PlanError, without a value, for what is no name of a variable, and for one that the
    launcher sets.
    """
    for name in names:
        if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*\*?", name):
            raise PlanError(
                f"{where}: {name.partition('=')[0]}: names only; set values with env, secrets never"
            )
        if name in OURS:
            raise PlanError(
                f"{where}: {name}: is set by the launcher",
                hint="launcher.gpus says which GPUs are used.",
            )


def check_words(words: Iterable[str], where: str) -> None:
    """Raises PlanError, without the value, for a word of a command line that looks like a
    secret.
    """
    for word in words:
        name, _, value = word.rpartition("=")
        if SECRET_VALUE.search(word) or (value and secret(name.lstrip("-"))):
            raise PlanError(
                f"{where}: {name or 'one of its words'}: a plan holds no secret",
                hint="Export it as a variable, and name that in pass_env.",
            )


def over(environ: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """`environ` with the changes; None removes."""
    merged = {**environ, **changes}
    return {name: value for name, value in merged.items() if value is not None}
