"""Causes of a server's end in logs of TensorRT-LLM, and the seconds until a launch ends.

`python -m tests.launchers.dead_servers` launches a server for each cause through the real command
line. The server prints the error, hangs with its process alive, and ignores SIGTERM. The script
prints the table of docs/measured/dead-servers.md with a column for 1.2 and one for main, whose
server keeps answering 503 `starting`. Names of flavours as arguments choose others. The exit code
is 1 if a row holds an error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from serve_eval.datasets.generated import write_gsm8k
from serve_eval.launchers._standin.options import ALL
from tests.root import ROOT
from tests.standin.deployments import environment

MPI_LOGS = Path(__file__).with_name("mpi_logs")
LONGEST_S = 120.0
FRAMES = """Traceback (most recent call last):
  File "/usr/local/bin/trtllm-serve", line 8, in <module>
    sys.exit(main())
             ^^^^^^
  File "/usr/local/lib/python3.12/dist-packages/tensorrt_llm/executor/worker.py", line 302, in worker_main
    worker = worker_cls(
"""  # noqa: E501


class Dead(NamedTuple):
    """The last words of a dead server, the cause that the launch names, and a similar warning."""

    name: str
    words: str
    told: str
    warning: str


DEAD = (
    Dead(
        "out of GPU memory",
        "[07/07/2026-03:31:36] [TRT-LLM] [E] [executor] Failed to initialize executor on rank 0:"
        " CUDA out of memory. Tried to allocate 2.00 GiB.\n[07/07/2026-03:31:36] [TRT-LLM] [E]"
        f" [executor] {FRAMES}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00"
        " GiB.",
        "out of GPU memory",
        "[07/07/2026-03:31:36] [TRT-LLM] [W] [Autotuner] Failed when profiling runner=Gemm,"
        " tactic=3. Error: CUDA out of memory. Tried to allocate 2.00 GiB.",
    ),
    Dead(
        "port taken",
        f"{FRAMES}RuntimeError: Failed to bind socket to localhost:8000: [Errno 98] Address already"
        " in use",
        "its port is taken",
        "[W socket.cpp:464] [c10d] The server socket has failed to bind to [::]:29500 (98 - Address"
        " already in use).",
    ),
    Dead(
        "unknown option",
        "Usage: trtllm-serve serve [OPTIONS] MODEL\nTry 'trtllm-serve serve --help' for help.\n\n"
        "Error: No such option: --server-role",
        "it does not know an option",
        "WARNING: No such option: --server-role in this version, taken as --server_role",
    ),
    Dead(
        "unknown config key",
        f"{FRAMES}pydantic_core._pydantic_core.ValidationError: 1 validation error for"
        " TorchLlmArgs\nmax_sequence\n  Extra inputs are not permitted [type=extra_forbidden,"
        " input_value=1, input_type=int]",
        "its config has a key",
        "/usr/lib/python3/site.py:12: UserWarning: max_sequence: Extra inputs are not permitted\n "
        " warnings.warn(",
    ),
    Dead(
        "too few GPUs",
        f"{FRAMES}ValueError: No GPU devices found on the node",
        "it found too few GPUs",
        "2026-07-07 03:31:36,746 - WARNING - flashinfer.jit: No GPU devices found, kernels come"
        " from the cache",
    ),
    Dead(
        "model not found",
        f"{FRAMES}OSError: org/none is not a local folder and is not a valid model identifier"
        " listed on the hub",
        "its model was not found",
        "[TRT-LLM] [W] Cannot load the processor: org/none does not appear to have a file named"
        " processor.json",
    ),
    Dead(
        "cache transceiver disabled",
        f"{FRAMES}AssertionError: kv_cache_transceiver is disabled, please set"
        " 'cache_transceiver_config: backend:'",
        "its cache transceiver is disabled",
        "[TRT-LLM] [W] kv_cache_transceiver is disabled",
    ),
    Dead(
        "missing Python package",
        f"{FRAMES}ModuleNotFoundError: No module named 'flashinfer'",
        "a Python package is missing",
        f"[TRT-LLM] [W] Failed to import nixl:\n{FRAMES}ModuleNotFoundError: No module named"
        " 'nixl'",
    ),
    Dead(
        "authentication key missing",
        f"{FRAMES}RuntimeError: Internal disaggregated authentication key is required",
        "its version requires a key",
        "serve.py:1: FutureWarning: Internal disaggregated authentication key is required and will"
        " be enforced",
    ),
    Dead(
        "ranks of MPI refused",
        (MPI_LOGS / "root_5.log").read_text().rstrip(),
        "Open MPI starts no processes for root",
        "[TRT-LLM] [W] prte has detected an attempt to run as root, MPI.Exception: MPI_ERR_UNKNOWN,"
        " it goes on",
    ),
    Dead(
        "ranks of MPI without slots",
        (MPI_LOGS / "slots_4.log").read_text().rstrip(),
        "Open MPI has fewer slots",
        "[node1:1] WARNING: not enough slots available, MPI_ERRORS_ARE_FATAL",
    ),
    Dead(
        "setting that needs NIXL",
        f"{FRAMES}ValueError: Python transceiver currently only supports the NIXL backend, got"
        " UCX.",
        "its model needs NIXL",
        "[TRT-LLM] [W] Python transceiver currently only supports the NIXL backend, got UCX.",
    ),
    Dead(
        "NIXL fails",
        f"{FRAMES}RuntimeError: Assertion failed: status == NIXL_SUCCESS"
        " (nixl_utils/transferAgent.cpp:505)",
        "NIXL could not move the KV cache",
        "[1700000000.1] [host:12:0] ucp_context.c:1234 UCX  WARN  no active messages transport:"
        " cuda_ipc, NIXL_ERR_X",
    ),
)
WARNINGS = "\n".join(one.warning for one in DEAD)


def measured(words, folder, flavour="v12"):
    """Launch a server that prints these words and hangs.

    Return the seconds from its line to the end of the tool, the exit code, and the message.
    """
    write_gsm8k(folder / "data/gsm8k")
    times = folder / "times"
    fault = {"hang_at_start": True, "ignore_sigterm": True, "last_words": words}
    env = environment(flavour, faults=fault, STANDIN_TIMES=str(times), STANDIN_STARTING="1")
    env |= {"TMPDIR": str(folder), "XDG_CACHE_HOME": str(folder / "cache")}
    env.pop("CUDA_VISIBLE_DEVICES", None)
    command = [
        sys.executable,
        "-m",
        "serve_eval",
        "run",
        "--launcher",
        "trtllm",
        "--model",
        "my-org/my-model",
    ]
    command += [
        "--tasks",
        "gsm8k",
        "--dataset-root",
        str(folder / "data"),
        "--no-reference",
        "-o",
        str(folder / "run"),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=env,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LONGEST_S,
    )
    now = time.time()
    assert times.exists(), done.stderr
    said = [line for line in times.read_text().splitlines() if line.endswith("says its last words")]
    return now - float(said[-1].split()[0]), done.returncode, done.stderr


def rows(flavours):
    """Yield the lines of the table; a cell starts with `no: ` if its launch ended differently."""
    yield (
        "| server's last words | told |"
        f" {' | '.join(f'seconds to exit 4, {one}' for one in flavours)} |"
    )
    yield "|---" * (2 + len(flavours)) + "|"
    for one in DEAD:
        last = next(line for line in reversed(one.words.splitlines()) if re.match(r"\S+: ", line))
        yield (
            f"| `{last[:75]}` | {one.told} |"
            f" {' | '.join(_cell(one, flavour) for flavour in flavours)} |"
        )


def _cell(one, flavour):
    with tempfile.TemporaryDirectory(prefix="dead-") as name:
        seconds, code, said = measured(one.words, Path(name), flavour)
    return f"{seconds:.1f}" if code == 4 and one.told in said else f"no: exit {code}: {said[-300:]}"


if __name__ == "__main__":
    failed = False
    for row in rows([one for one in ALL if one in sys.argv[1:]] or ["v12", "main"]):
        print(row, flush=True)
        failed = failed or "| no: " in row
    sys.exit(failed or os.EX_OK)
