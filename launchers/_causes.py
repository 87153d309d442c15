"""Known causes of a server's end, as its log tells them."""

from __future__ import annotations

import re
from typing import NamedTuple

AT_ONCE, STILL, ENDS_ITSELF = "at once", "still", "ends itself"


class Cause(NamedTuple):
    """A pattern of log lines, what to call it, and what to do.

    `ends` says when such a line ends the wait for a server whose process lives: AT_ONCE as an error that was raised;
    STILL only when the log and the processes stand still too, since servers that catch it go on; ENDS_ITSELF never,
    since the process ends by itself.
    """

    pattern: str
    told: str
    hint: str
    ends: str = AT_ONCE


# Order matters: a server that is out of memory also loses its ranks.
_ROWS: tuple[tuple[str, str, str] | tuple[str, str, str, str], ...] = (
    (
        r"CUDA out of memory|OutOfMemoryError|due to insufficient GPU memory"
        r"|out of memory.*(?i:cuda|gpu|device)|(?i:cuda|gpu|device).*out of memory",
        "out of GPU memory",
        "Give it more GPUs (tp), a smaller max_seq_len or max_batch_size, or a smaller free_gpu_memory_fraction; "
        "nvidia-smi shows whether somebody else holds the memory.",
    ),
    (r"Failed to bind socket", "its port is taken", "Leave `port` out, and a free one is taken."),
    (
        r"[Aa]ddress already in use",
        "its port is taken",
        "Leave `port` out, and a free one is taken.",
        STILL,
    ),
    (
        r"No such option|Invalid value for|unexpected extra argument|Missing argument|error: unrecognized arguments",
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
        r"[Ii]nternal disaggregated authentication key is (required|missing)",
        "its internal authentication key is missing",
        "Servers and orchestrator need the same internal_request_auth_key, in the config of each.",
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
        ENDS_ITSELF,
    ),
    (
        r"could not select device driver|unresolvable CDI devices?|nvidia-container-cli: initialization error",
        "the container engine cannot give it GPUs",
        "Install the NVIDIA container toolkit and set it up for this engine (nvidia-ctk).",
        ENDS_ITSELF,
    ),
    (
        r"pull access denied|manifest unknown|manifest for .* not found|short-name .* did not resolve",
        "its container image was not found",
        "Pull it first, with its full name; log in to its registry where it asks for that.",
        ENDS_ITSELF,
    ),
    (
        r"CANCELLED AT \S+ DUE TO TIME LIMIT",
        "the time limit of its job was reached",
        "Give the same command in a new allocation: answers that were had are kept.",
        ENDS_ITSELF,
    ),
    (
        r"error: \*\*\* (STEP|JOB) \S+ ON \S+ CANCELLED",
        "SLURM cancelled it",
        "After scancel or a time limit, give the same command in a new allocation: answers that were had are kept.",
        ENDS_ITSELF,
    ),
    (
        r"srun: (unrecognized option '--|error:.*)container-",
        "this SLURM knows no container images",
        "They need its plug-in pyxis. Without it, set engine: docker or podman under launcher.container.",
        ENDS_ITSELF,
    ),
    (
        r"srun: error: .*[Ii]nvalid MPI type",
        "this SLURM has no such MPI plug-in",
        "srun --mpi=list names those that it has: set launcher.mpi to one of them.",
        ENDS_ITSELF,
    ),
    (
        r"ModuleNotFoundError: No module named",
        "a Python package is missing",
        "Is this the environment of the server?",
        STILL,
    ),
    (
        r"oom[-_ ]kill|[Oo]ut of memory: Killed process|Out Of Memory event",
        "it was killed for want of main memory",
        "Give the job or the container more main memory, or load fewer servers at a time.",
        ENDS_ITSELF,
    ),
    (
        r"(?m)^Killed$|signal 9 \(Killed\)",
        "a process of it was ended by SIGKILL",
        "dmesg tells whether the kernel did it for want of main memory; else a person, a limit or a watchdog did.",
        ENDS_ITSELF,
    ),
)
CAUSES = tuple(Cause(*row) for row in _ROWS)


def known(log: str) -> Cause | None:
    """Return the first known cause that a log shows."""
    return next((one for one in CAUSES if re.search(one.pattern, log)), None)


def cause(log: str) -> tuple[str, str] | None:
    """Return what the first known cause of a log is called, and what to do about it."""
    return None if (found := known(log)) is None else (found.told, found.hint)
