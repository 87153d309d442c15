"""What the log of a server that ended says, where it is known."""

from __future__ import annotations

import re

# Order matters: a server that is out of memory also loses its ranks.
CAUSES = (
    (
        r"CUDA out of memory|OutOfMemoryError|out of memory.*(cuda|gpu|device)|(cuda|gpu|device).*out of memory",
        "out of GPU memory",
        "Give it more GPUs (tp), a smaller max_seq_len or max_batch_size, or a smaller free_gpu_memory_fraction; "
        "nvidia-smi shows whether somebody else holds the memory.",
    ),
    (
        r"ZMQError: Address already in use",
        "an address between its processes is taken",
        "Give the same command again. On SLURM, leave `wrapper` out where a node has several servers.",
    ),
    (
        r"Failed to bind socket|[Aa]ddress already in use",
        "its port is taken",
        "Leave `port` out, and a free one is taken.",
    ),
    (
        r"No such option|Invalid value for|unexpected extra argument|Missing argument",
        "it does not know an option that it was given",
        "trtllm-serve serve --help lists what this version knows.",
    ),
    (
        r"extra_forbidden|Extra inputs are not permitted|ValidationError.*LlmArgs|validation errors? for \w*LlmArgs",
        "its config holds a key or a value that this version does not know",
        "Correct launcher.config; the log names the key.",
    ),
    (
        r"cache_transceiver is disabled|[Dd]isaggregated serving is not enabled",
        "its cache transceiver is disabled",
        "Set cache_transceiver_config: {backend: DEFAULT} in the config of both sides.",
    ),
    (
        r"No GPU devices found|no CUDA-capable device|invalid device ordinal|CUDA_ERROR_NO_DEVICE"
        r"|world.?size.*(greater|larger|exceed).*gpu",
        "it found too few GPUs",
        "nvidia-smi lists the GPUs of this machine; `gpus` says which are used.",
    ),
    (
        r"RepositoryNotFoundError|is not a local folder and is not a valid model|does not appear to have a file named"
        r"|Repository Not Found|GatedRepoError|LocalEntryNotFoundError|No such file or directory: '[^']*config\.json'",
        "its model was not found",
        "Give `model` as a folder with a checkpoint, or as a name of the hub (HF_TOKEN for gated ones).",
    ),
    (
        r"Cannot connect to the Docker daemon|permission denied.*docker(\.sock| daemon)|Cannot connect to Podman",
        "the container engine does not run, or you may not use it",
        "Start it, or ask for the right to use it; `docker ps` and `podman ps` show whether it answers.",
    ),
    (
        r"could not select device driver|unresolvable CDI devices?|nvidia-container-cli: initialization error",
        "the container engine cannot give it GPUs",
        "Install the NVIDIA container toolkit and set it up for this engine (nvidia-ctk).",
    ),
    (
        r"pull access denied|manifest unknown|manifest for .* not found|short-name .* did not resolve",
        "its container image was not found",
        "Pull it first, with its full name; log in to its registry where it asks for that.",
    ),
    (
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        "the time limit of its job was reached",
        "Give the same command in a new allocation: answers that were had are kept.",
    ),
    (
        r"(?ms)^\d+: .*^srun: error: [^\n]* tasks? [^\n]*\nsrun: [^\n]*Terminating (StepId|job step)",
        "one of its ranks ended, and SLURM all others",
        "The line of srun above tells which, and the lines that begin with its number what it said.",
    ),
    (
        r"error: \*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED",
        "SLURM cancelled it",
        "After scancel or a time limit, give the same command in a new allocation: answers that were had are kept.",
    ),
    (
        r"srun: (unrecognized option '--|error:.*)container-",
        "this SLURM knows no container images",
        "They need its plug-in pyxis. Without it, set engine: docker or podman under launcher.container.",
    ),
    (
        r"srun: error: .*[Ii]nvalid MPI type",
        "this SLURM has no such MPI plug-in",
        "srun --mpi=list names those that it has: set launcher.mpi to one of them.",
    ),
    (r"ModuleNotFoundError: No module named", "a Python package is missing", "Is this the environment of the server?"),
    (
        r"(?m)^Killed$|oom-kill|signal 9 \(Killed\)",
        "it was killed, perhaps by the kernel for want of main memory",
        "dmesg says whether the kernel did it.",
    ),
)


def cause(log: str) -> tuple[str, str] | None:
    """The first known cause that a log shows, and what to do about it."""
    for pattern, told, hint in CAUSES:
        if re.search(pattern, log):
            return told, hint
    return None
