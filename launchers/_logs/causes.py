"""Known causes of a server's end, as its log shows them."""

from __future__ import annotations

import re
from typing import NamedTuple

from serve_eval.launchers._logs import transfer_causes

UNKNOWN_OPTION = "it does not know an option that it was given"
AT_ONCE, STILL, ENDS_ITSELF = "at once", "still", "ends itself"


class Cause(NamedTuple):
    """A pattern of log lines, its name, and the remedy.

    `ends` says when such a line ends the wait for a server whose process lives. AT_ONCE: as an
    error that was raised. STILL: only if the log and the processes stand still too, since servers
    that catch it go on. ENDS_ITSELF: never, since the process ends without help. `vague` means that
    the line shows what failed but not why; another line may.
    """

    pattern: str
    told: str
    hint: str
    ends: str = AT_ONCE
    vague: bool = False


# Order matters: a server that is out of memory also loses its ranks.
_ROWS: tuple[
    tuple[str, str, str] | tuple[str, str, str, str] | tuple[str, str, str, str, bool], ...
] = (
    (
        r"CUDA out of memory|OutOfMemoryError|due to insufficient GPU memory"
        r"|out of memory.*(?i:cuda|gpu|device)|(?i:cuda|gpu|device).*out of memory",
        "out of GPU memory",
        (
            "Give it more GPUs (tp), a smaller max_seq_len or max_batch_size, or a"
            " smaller free_gpu_memory_fraction; nvidia-smi shows whether another process"
            " uses the memory."
        ),
    ),
    (r"Failed to bind socket", "its port is taken", "Leave `port` out to use a free one."),
    (
        r"ZMQError: Address already in use",
        "an address between its processes is taken",
        (
            "Give the same command again. On SLURM, leave `wrapper` out if a node has"
            " several servers."
        ),
        STILL,
    ),
    (
        r"[Aa]ddress already in use",
        "its port is taken",
        "Leave `port` out to use a free one.",
        STILL,
    ),
    (
        (
            r"No such option|Invalid value for|unexpected extra argument|Missing argument|error:"
            r" unrecognized arguments"
        ),
        UNKNOWN_OPTION,
        "trtllm-serve serve --help lists the options of this version.",
    ),
    (
        (
            r"extra_forbidden|Extra inputs are not permitted|ValidationError.*LlmArgs|validation"
            r" errors? for \w*LlmArgs"
        ),
        "its config has a key or a value that this version does not know",
        "Correct launcher.config; the log names the key.",
    ),
    (
        r"cache_transceiver is disabled|[Dd]isaggregated serving is not enabled",
        "its cache transceiver is disabled",
        "Set cache_transceiver_config: {backend: DEFAULT} in the config of both sides.",
    ),
    (
        (
            r"[Ii]nternal disaggregated authentication key is (required(?![^\n]*future"
            r" release)|missing)"
        ),
        "its version requires a key that the servers share, and it was given none",
        "Set auth_key: true.",
    ),
    (
        r"No GPU devices found|no CUDA-capable device|invalid device ordinal|CUDA_ERROR_NO_DEVICE"
        r"|world.?size.*(greater|larger|exceed).*gpu",
        "it found too few GPUs",
        "nvidia-smi lists the GPUs of this machine; `gpus` chooses among them.",
    ),
    (
        r"(prte|prted|prterun|mpirun|mpiexec|orterun) has detected an attempt to run as root",
        "Open MPI starts no processes for root",
        (
            "Set PRTE_ALLOW_RUN_AS_ROOT: '1' and PRTE_ALLOW_RUN_AS_ROOT_CONFIRM: '1' in"
            " launcher.env; for mpirun in launcher.command, add --allow-run-as-root."
        ),
    ),
    (
        (
            r"not enough slots available|number of available slots|nodes which are allocated for"
            r" this job are already"
        ),
        "Open MPI has fewer slots (cores) than the server and its ranks together",
        (
            "Set OMPI_MCA_rmaps_base_oversubscribe: '1' in launcher.env, or give the container more"
            " cores."
        ),
    ),
    (
        (
            r"OPAL ERROR: Unreachable in file \S+client|It looks like orte_init failed|to have been"
            r" direct launched using"
        ),
        "it believed that it was a rank of the MPI job or the SLURM step around it",
        (
            "In pass_env, SERVE_EVAL_PASS_ENV and launcher.env, name no SLURM_*,"
            " PMIX_*, PMI_* or OMPI_* except your own OMPI_MCA_*."
        ),
    ),
    (
        r"MPI processes are unable to reach each other|MPI\.Exception: MPI_ERR_INTERN",
        "its process and its MPI ranks cannot reach each other",
        (
            "Unset OMPI_MCA_btl and OMPI_MCA_pml, or add tcp to btl: ranks that a"
            " server starts need it."
        ),
    ),
    (
        r"dpm\.c at line 1997",
        "Open MPI 5 did not find its program prte",
        "Put the folder of prte on PATH: it is the bin folder of the MPI that mpi4py uses.",
    ),
    (
        r"\(_manager_spawn\)|MPI\.Exception: MPI_ERR_(SPAWN|UNKNOWN)",
        "MPI did not start its ranks, so it would never stop waiting for them",
        (
            "Open MPI 5 needs prte on PATH, and for root PRTE_ALLOW_RUN_AS_ROOT: '1'"
            " and PRTE_ALLOW_RUN_AS_ROOT_CONFIRM: '1' in launcher.env; the log has MPI's"
            " message above that."
        ),
        AT_ONCE,
        True,
    ),
    (
        r"MPI\.Exception: MPI_ERR_\w+|MPI_ERRORS_ARE_FATAL",
        "MPI failed",
        (
            "The log shows how. Try it without OMPI_MCA_*, PMIX_MCA_* and UCX_* in the"
            " environment and in launcher.env."
        ),
        AT_ONCE,
        True,
    ),
    (
        r"RepositoryNotFoundError|is not a local folder and is not a valid model|does not appear to"
        r" have a file named"
        r"|Repository Not Found|GatedRepoError|LocalEntryNotFoundError|No such file or directory:"
        r" '[^']*config\.json'",
        "its model was not found",
        (
            "Give `model` as a folder with a checkpoint, or as a name on the hub"
            " (HF_TOKEN for gated models)."
        ),
    ),
    (
        (
            r"Cannot connect to the Docker daemon|permission denied.*docker(\.sock| daemon)|Cannot"
            r" connect to Podman"
        ),
        "the container engine does not run, or you have no access to it",
        ("Start it, or ask for access; `docker ps` and `podman ps` show whether it answers."),
        ENDS_ITSELF,
    ),
    (
        (
            r"could not select device driver|unresolvable CDI devices?|nvidia-container-cli:"
            r" initialization error"
        ),
        "the container engine cannot give it GPUs",
        "Install the NVIDIA container toolkit and configure it for this engine (nvidia-ctk).",
        ENDS_ITSELF,
    ),
    (
        (
            r"pull access denied|manifest unknown|manifest for .* not found|short-name .* did not"
            r" resolve"
        ),
        "its container image was not found",
        "Pull it first, with its full name; log in to its registry if necessary.",
        ENDS_ITSELF,
    ),
    (
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        "its job reached the time limit",
        "Give the same command in a new allocation.",
        ENDS_ITSELF,
    ),
    (
        (
            r"(?ms)^\d+: .*^srun: error: [^\n]* tasks? [^\n]*\nsrun: [^\n]*Terminating (StepId|job"
            r" step)"
        ),
        "one of its ranks ended, and SLURM ended all others",
        (
            "The srun line above names the rank; the lines that begin with its number"
            " show its output."
        ),
        ENDS_ITSELF,
    ),
    (
        r"error: \*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED",
        "SLURM cancelled it",
        "After scancel or a time limit, give the same command in a new allocation.",
        ENDS_ITSELF,
    ),
    (
        r"srun: (unrecognized option '--|error:.*)container-",
        "this SLURM does not support container images",
        (
            "They need the plug-in pyxis. Without it, set engine: docker or podman"
            " under launcher.container."
        ),
        ENDS_ITSELF,
    ),
    (
        r"srun: error: .*[Ii]nvalid MPI type",
        "this SLURM has no such MPI plug-in",
        "Set launcher.mpi to one that srun --mpi=list shows.",
        ENDS_ITSELF,
    ),
    *transfer_causes.SETTINGS,
    *((*row, STILL) for row in transfer_causes.LIBRARIES),
    (
        r"ModuleNotFoundError: No module named",
        "a Python package is missing",
        "Check that the server runs in the right environment.",
        STILL,
    ),
    (
        r"oom[-_ ]kill|[Oo]ut of memory: Killed process|Out Of Memory event",
        "it was killed because main memory ran out",
        "Give the job or the container more main memory, or load fewer servers at a time.",
        ENDS_ITSELF,
    ),
    (
        r"(?m)^Killed$|signal 9 \(Killed\)",
        "one of its processes was ended by SIGKILL",
        (
            "dmesg shows whether it was the kernel's out-of-memory killer; else it was a person, a"
            " limit or a watchdog."
        ),
        ENDS_ITSELF,
    ),
)
CAUSES = tuple(Cause(*row) for row in _ROWS)


def find_known(log: str) -> Cause | None:
    """Return the first known cause that a log shows."""
    return next((one for one in CAUSES if re.search(one.pattern, log)), None)


def cause(log: str) -> tuple[str, str] | None:
    """Return the name of the first known cause in a log, and its remedy."""
    return None if (found := find_known(log)) is None else (found.told, found.hint)
