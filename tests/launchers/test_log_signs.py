"""Test log lines that show a dead server, and lines after which it continues."""

import pytest

from serve_eval.launchers._logs.causes import find_known
from serve_eval.launchers._logs.lines import clean
from serve_eval.launchers._logs.signs import Signs, Strength
from tests.launchers.dead_servers import DEAD, FRAMES, MPI_LOGS, WARNINGS

OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
ERROR = "[07/07/2026-03:31:36] [TRT-LLM] [E] "
INFO = "[07/07/2026-03:31:37] [TRT-LLM] [I] Loading weights"
HANDLING = "\n\nDuring handling of the above exception, another exception occurred:\n\n"
CHAINED = "\n\nThe above exception was the direct cause of the following exception:\n\n"


def read(*written):
    """Return the strongest sign in texts that are written one after the other."""
    signs = Signs()
    for number, text in enumerate(written):
        for line in text.splitlines():
            signs.read(clean(line.encode()), later=number > 0)
    return signs.strongest


def strength(*written):
    sign = read(*written)
    return (None, None) if sign is None else (sign.strength, sign.cause and sign.cause.told)


@pytest.mark.parametrize("one", DEAD, ids=lambda one: one.name)
def test_the_last_words_of_a_dead_server_name_its_cause(one):
    sign = read(INFO, one.words)
    assert sign.cause.told.startswith(one.told)
    assert sign.strength >= Strength.REPORTED


@pytest.mark.parametrize("one", DEAD, ids=lambda one: one.name)
def test_a_warning_is_no_known_cause(one):
    found = read(INFO, one.warning)
    assert found is None or (found.strength, found.cause) == (Strength.TRACEBACK, None)


def test_warnings_are_no_signs():
    sign = read(INFO, WARNINGS, INFO)
    assert sign is None or (sign.strength, sign.cause) == (Strength.TRACEBACK, None)


@pytest.mark.parametrize(
    "line",
    [
        "[07/07/2026-03:31:36] [TRT-LLM] [W] CUDA out of memory, retrying with half of it",
        "[TRT-LLM] [RANK 3] [D] [Autotuner] Exception captured: CUDA out of memory",
        "[TensorRT-LLM][WARNING] CUDA runtime error in cudaMalloc: out of memory",
        (
            "2026-07-06 23:18:25,447 - WARNING - autotuner.py:1315 - OOM: CUDA out of memory,"
            " falling back"
        ),
        "WARNING:  CUDA out of memory",
        "warning: CUDA out of memory",
        "x.py:3: RuntimeWarning: CUDA out of memory",
        "UserWarning: CUDA out of memory",
        "W0716 12:00:00.000000 12 x.cpp:3] CUDA out of memory",
        "[rank0]:[W716 12:00:00.1 ProcessGroupNCCL.cpp:1] CUDA out of memory",
        "[1700000000.123456] [host:12:0] ucp_context.c:1234 UCX  WARN  CUDA out of memory",
        "host:12:34 [0] NCCL WARN Cuda failure 'out of memory' of the gpu",
        "INFO:     cache_transceiver is disabled",
        "0: [TRT-LLM] [W] CUDA out of memory",
        "\x1b[33m[TRT-LLM] [W] CUDA out of memory\x1b[0m",
        "[TRT-LLM] [W] Failed to import x:\nModuleNotFoundError: No module named 'x'",
        "CUDA out of memory: trying again with another tactic",
        "Loading weights:  40%|####      | 3/8 gpu out of memory 0",
    ],
)
def test_a_line_at_level_warning_or_below_is_none(line):
    assert strength(line)[1] is None
    assert strength(line)[0] in (None, Strength.TRACEBACK)


@pytest.mark.parametrize(
    ("text", "expected", "told"),
    [
        (f"{FRAMES}{OOM}", Strength.RAISED, "out of GPU memory"),
        (
            f"{ERROR}Traceback (most recent call last):\n  File x\n{OOM}",
            Strength.RAISED,
            "out of GPU memory",
        ),
        (OOM, Strength.RAISED, "out of GPU memory"),
        (f"3: {OOM}", Strength.RAISED, "out of GPU memory"),
        (f"{ERROR}CUDA out of memory", Strength.REPORTED, "out of GPU memory"),
        (
            "[TensorRT-LLM][ERROR] CUDA runtime error in f: out of memory",
            Strength.REPORTED,
            "out of GPU memory",
        ),
        ("CUDA out of memory", Strength.TRACEBACK, "out of GPU memory"),
        (
            f"{ERROR}Failed to initialize executor on rank 3: {OOM}",
            Strength.CERTAIN,
            "out of GPU memory",
        ),
        (
            f"{FRAMES}{OOM}{CHAINED}{FRAMES}RuntimeError: Executor worker returned error",
            Strength.CERTAIN,
            "out of GPU",
        ),
        (f"{FRAMES}RuntimeError: Executor worker returned error", Strength.FINAL, None),
        (f"{FRAMES}{OOM}{HANDLING}{FRAMES}KeyError: 'x'", Strength.TRACEBACK, None),
        (
            f"{FRAMES}ModuleNotFoundError: No module named 'x'",
            Strength.REPORTED,
            "a Python package is missing",
        ),
        (
            f"{FRAMES}RuntimeError: Failed to bind socket to localhost:1: no",
            Strength.RAISED,
            "its port is taken",
        ),
        (
            f"{FRAMES}zmq.error.ZMQError: Address already in use",
            Strength.REPORTED,
            "an address between",
        ),
        (f"{FRAMES}IndexError: tuple index out of range", Strength.TRACEBACK, None),
        (f"{FRAMES}KeyError", Strength.TRACEBACK, None),
        (f"{ERROR}something", Strength.TRACEBACK, None),
        (f"{ERROR}CUDA out of memory, retrying with half of the batch", None, None),
        (
            f"{ERROR}Executor creation failed:\nthe GPU is out of memory",
            Strength.CERTAIN,
            "out of GPU memory",
        ),
        (
            f"{FRAMES}{OOM}\nRetrying with half of the batch",
            Strength.TRACEBACK,
            "out of GPU memory",
        ),
        (f"{FRAMES}    print('WARNING: failed')\n{OOM}", Strength.RAISED, "out of GPU memory"),
        (f"{FRAMES}some.module.GatedRepo: no", Strength.TRACEBACK, None),
        ("[TRT-LLM AUTO-DEPLOY] [RANK 0] [E] something", Strength.TRACEBACK, None),
        ("0: Rank0 Task exit code: 1", Strength.FINAL, None),
        ("0: Rank0 Task exit code: 0", None, None),
        ("[TRT-LLM] [W] slow\nRank0 Task exit code: 137", Strength.FINAL, None),
        (
            (
                f"{ERROR}Failed to parse the arguments for the LLM constructor: 1 validation error"
                " for TrtLlmArgs"
            ),
            5,
            "its config",
        ),
        ("ERROR:    something of another program", None, None),
        (f"Exception in thread Thread-3 (poll):\n{FRAMES}KeyError: 'x'", None, None),
        (
            (
                f"Exception in thread Thread-3 (poll):\n{FRAMES}KeyError:"
                f" 'x'{CHAINED}{FRAMES}ValueError: x"
            ),
            None,
            None,
        ),
        (
            f"Exception in thread Thread-3 (poll):\n{FRAMES}KeyError: 'x'\n{FRAMES}ValueError: x",
            Strength.TRACEBACK,
            None,
        ),
        (
            f"Exception in thread Thread-3 (run):\n{FRAMES}{OOM}",
            Strength.RAISED,
            "out of GPU memory",
        ),
        (f"[TRT-LLM] [W] tried:\n{FRAMES}{OOM}", Strength.TRACEBACK, None),
        (f"[TRT-LLM] [I] Import failed:\n{FRAMES}{OOM}", Strength.TRACEBACK, None),
        (f"{INFO}\n{FRAMES}{OOM}", Strength.RAISED, "out of GPU memory"),
        (
            f"x.py:3: FutureWarning: old\n  warnings.warn(\n{FRAMES}{OOM}",
            Strength.RAISED,
            "out of GPU memory",
        ),
        ("  what():  CUDA error: out of memory on device", Strength.RAISED, "out of GPU memory"),
        (
            "slurmstepd-n1: error: *** STEP 3.3 ON n1 CANCELLED AT 2026 DUE TO TIME LIMIT ***",
            None,
            None,
        ),
    ],
)
def test_what_an_error_is_worth(text, expected, told):
    found, named = strength(text)
    assert found == expected
    assert (named or "").startswith(told or "")
    assert bool(named) == bool(told)


@pytest.mark.parametrize("log", [path.stem for path in sorted(MPI_LOGS.iterdir())])
def test_where_mpi_gives_up_the_line_that_says_why_is_told(log):
    text = (MPI_LOGS / f"{log}.log").read_text()
    sign = read(*text.splitlines(keepends=True))
    assert sign.strength is Strength.CERTAIN
    assert sign.cause == find_known(text)


def test_a_thread_that_spawns_ranks_is_not_caught_whatever_it_raised():
    spawning = f"Exception in thread Thread-1 (_manager_spawn):\n{FRAMES}OSError: no"
    assert strength(spawning, INFO) == (
        Strength.CERTAIN,
        "MPI did not start its ranks, so it would never stop waiting for them",
    )
    assert strength(f"{spawning}\n{FRAMES}mpi4py.MPI.Exception: MPI_ERR_OTHER: x") == strength(
        spawning
    )
    assert strength(
        f"Exception ignored in: MPI_ERR_SPAWN (_manager_spawn)\n{FRAMES}OSError: no"
    ) == (None, None)
    assert (
        strength(f"Exception in thread Thread-1 (_manager_spawn):\n{FRAMES}{OOM}")[1]
        == "out of GPU memory"
    )


def test_a_cause_that_may_be_caught_explains_no_failure_of_mpi():
    caught = f"{FRAMES}ModuleNotFoundError: No module named 'x'"
    failed = f"{FRAMES}mpi4py.MPI.Exception: MPI_ERR_OTHER: x"
    assert strength(caught, INFO, failed) == (Strength.RAISED, "MPI failed")
    assert strength(failed, caught) == (Strength.RAISED, "a Python package is missing")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "ValueError: Python transceiver currently only supports the NIXL backend, got UCX.",
            Strength.RAISED,
        ),
        ("ValueError: HTTP cluster storage is loopback-only", Strength.RAISED),
        ("ValueError: Invalid cluster storage URI: etcd://h:1", Strength.RAISED),
        ("ValueError: Invalid internal disaggregated request authentication", Strength.RAISED),
        ("RuntimeError: status == NIXL_SUCCESS", Strength.REPORTED),
        ("OSError: libnixl.so: cannot open shared object file", Strength.REPORTED),
        ("etcd3.Etcd3Exception: Etcd3 error in set: ConnectionFailedError", Strength.REPORTED),
    ],
)
def test_settings_end_a_server_at_once_and_libraries_when_it_stands_still(text, expected):
    assert strength(f"{FRAMES}{text}")[0] is expected


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (INFO, Strength.TRACEBACK),
        ("Retrying with half of the batch", Strength.TRACEBACK),
        ("Loading weights:  40%|####      | 3/8", Strength.TRACEBACK),
        ("a line without a level, later", Strength.TRACEBACK),
        ("1: [TRT-LLM] [I] another rank loads", Strength.RAISED),
        ("[TRT-LLM] [RANK 2] [I] another rank loads", Strength.RAISED),
        (
            (
                "[rank0]:[W716 12:00 ProcessGroupNCCL.cpp:1] Warning: destroy_process_group() was"
                " not called"
            ),
            Strength.RAISED,
        ),
        (
            'INFO:     127.0.0.1:4124 - "GET /health HTTP/1.1" 503 Service Unavailable',
            Strength.RAISED,
        ),
        (f"{ERROR}another error", Strength.RAISED),
    ],
)
def test_a_server_that_writes_on_has_caught_its_error(after, expected):
    assert strength(f"{FRAMES}{OOM}", after) == (expected, "out of GPU memory")


def test_of_two_tracebacks_the_last_is_told():
    assert (found := read(f"{FRAMES}KeyError: 'x'", INFO, f"{FRAMES}IndexError: no")) is not None
    assert found.line == "IndexError: no"


def test_nothing_is_caught_after_a_server_gave_up():
    gave_up = f"{ERROR}Failed to initialize executor on rank 3: {OOM}"
    assert strength(gave_up, INFO, INFO) == (Strength.CERTAIN, "out of GPU memory")
    assert (
        strength(f"{FRAMES}{OOM}", INFO, f"{ERROR}Executor worker died during initialization.")[0]
        is Strength.CERTAIN
    )
    assert (
        strength(f"{ERROR}Executor worker initialization error: {FRAMES}{OOM}")[0]
        is Strength.CERTAIN
    )


def test_our_own_requests_are_no_activity():
    signs = Signs()
    assert not signs.read(
        clean(b'INFO:     127.0.0.1:4124 - "GET /health HTTP/1.1" 503 Service Unavailable')
    )
    assert not signs.read(clean(b"   "))
    assert signs.read(clean(b"INFO:     Loading"))


def test_ranks_are_read_for_themselves_and_their_number_is_bounded():
    mixed = "0: Traceback (most recent call last):\n1: [TRT-LLM] [W] tried:\n0:   File x\n0: " + OOM
    assert strength(mixed) == (Strength.RAISED, "out of GPU memory")
    signs = Signs()
    for number in range(6000):
        signs.read(clean(f"{number}: x".encode()))
    assert len(signs._streams) <= 4096


def test_memory_is_blamed_by_words_of_a_kernel_and_not_by_a_shell():
    assert (shell := find_known("line\nKilled\n")) is not None
    assert "memory" not in shell.told
    assert (
        found := find_known("slurmstepd: error: Detected 1 oom_kill event in StepId=3.0")
    ) is not None
    assert found.told == "it was killed because main memory ran out"
