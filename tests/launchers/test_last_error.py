"""Test which error of a log is taken for the end of its server: levels, order, what was caught."""

from __future__ import annotations

import pytest

from serve_eval.launchers._logs.causes import TRTLLM, VLLM, find_known
from serve_eval.launchers._logs.last_error import LONGEST, Explanation, cause, explain

E, W, INFO = (f"[11/02/2026-09:00:01] [TRT-LLM] [{one}] " for one in "EWI")
TRACEBACK = 'Traceback (most recent call last):\n  File "/x/serve.py", line 8, in <module>\n'
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
HEADS = "ValueError: num_attention_heads (14) must be divisible by tp_size (4)"
PORT = "OSError: [Errno 98] Address already in use"
MISSING = "ModuleNotFoundError: No module named 'flashinfer.comm'"
UNKNOWN = "ValueError: the ring of layer 7 has an odd stride"
GAVE_UP = "RuntimeError: Executor worker returned error"
HANDLING = "\nDuring handling of the above exception, another exception occurred:\n\n"
READY = "INFO:     Application startup complete."
CORE = "(EngineCore_DP0 pid=15) ERROR 11-05 12:19:32 [core.py:708] "
API = "(APIServer pid=12) "
OUT_OF_MEMORY, TAKEN = "out of GPU memory", "its port is taken"
TENSOR = "its tensor parallelism does not divide the model's heads or layers"


def lines(*each: str) -> str:
    return "\n".join(each)


@pytest.mark.parametrize(
    ("log", "told", "line"),
    [
        # levels
        (lines(f"{W}Failed when profiling: {OOM}", f"{TRACEBACK}{PORT}"), TAKEN, PORT),
        (lines(f"{INFO}tried: {OOM}", f"{E}{HEADS}", GAVE_UP), TENSOR, HEADS),
        (lines(f"{W}{OOM}", f"{TRACEBACK}{UNKNOWN}", GAVE_UP), None, UNKNOWN),
        (lines(f"x.py:1: UserWarning: {OOM}", "  warnings.warn(", UNKNOWN), None, UNKNOWN),
        (f"[11/02/2026-09:00:01] [TRT-LLM] [F] {HEADS}", TENSOR, HEADS),
        (
            lines(f"{INFO}first", f"{E}an error of its own", f"{E}a later one"),
            None,
            "an error of its",
        ),
        # words by which an error is survived
        (lines(f"{E}{OOM}, retrying with half of it", f"{E}{HEADS}", GAVE_UP), TENSOR, HEADS),
        (lines(f"{E}caught {OOM}", UNKNOWN), None, UNKNOWN),
        (lines(f"{E}{OOM} (ignored)", f"{E}{UNKNOWN}"), None, UNKNOWN),
        (lines("CUDA out of memory, falling back to the CPU", UNKNOWN), None, UNKNOWN),
        # what a process writes later
        (lines(f"{TRACEBACK}{MISSING}", f"{W}slower", f"{E}{HEADS}", GAVE_UP), TENSOR, HEADS),
        (lines(f"{TRACEBACK}{MISSING}", f"{TRACEBACK}{UNKNOWN}"), None, UNKNOWN),
        (lines(f"{TRACEBACK}{MISSING}"), "a Python package is missing", MISSING),
        (lines(f"{E}{OOM}", *[f"{INFO}layer {n}" for n in range(5)], UNKNOWN), None, UNKNOWN),
        (lines(f"{E}{OOM}", *[f"{INFO}layer {n}" for n in range(5)]), OUT_OF_MEMORY, OOM),
        (lines(f"{E}{OOM}", *[f"{INFO}layer {n}" for n in range(50)]), None, ""),
        (
            lines(f"{E}{OOM}", *[f"{INFO}Releasing block {n}" for n in range(99)]),
            OUT_OF_MEMORY,
            OOM,
        ),
        (lines(f"{E}{OOM}", READY, UNKNOWN), None, UNKNOWN),
        (lines(f"{E}{OOM}", READY), None, ""),
        # an exception that was being handled when another was raised
        (f"{TRACEBACK}{OOM}\n{HANDLING}{TRACEBACK}{UNKNOWN}", None, UNKNOWN),
        (f"{TRACEBACK}KeyError: 'x'\n{HANDLING}{TRACEBACK}{HEADS}\n{GAVE_UP}", TENSOR, HEADS),
        # the first reason, not what follows from it
        (lines(f"{E}{OOM}", f"{E}{HEADS}", GAVE_UP), OUT_OF_MEMORY, OOM),
        (lines(f"{E}{OOM}", f"{E}MPI_ABORT was invoked on rank 0"), OUT_OF_MEMORY, OOM),
        (
            lines(f"{E}an error of its own", "MPI_ABORT was invoked on rank 0 in communicator"),
            "one of its ranks called MPI_ABORT, which ends all of them",
            "an error of its own",
        ),
        (GAVE_UP, None, GAVE_UP),
        # a warning stands above it, and nothing below
        (lines(f"{W}failed to find a config", f"{TRACEBACK}{HEADS}"), TENSOR, HEADS),
        (lines(f"{W}failed to import:", f"{TRACEBACK}{OOM}", f"{INFO}next"), None, ""),
        # ranks
        (lines(f"3: {E}{OOM}", *[f"0: {INFO}layer {n}" for n in range(9)]), OUT_OF_MEMORY, OOM),
        (
            lines("[rank0]: Traceback (most recent call last):", f"[rank0]: {OOM}"),
            OUT_OF_MEMORY,
            OOM,
        ),
        # a thread that does not matter
        (f"Exception in thread Thread-3 (poll):\n{TRACEBACK}KeyError: 'x'", None, ""),
        ("", None, ""),
    ],
)
def test_the_error_that_ended_a_trtllm_server(log: str, told: str | None, line: str) -> None:
    found = explain(log, TRTLLM) or Explanation("")
    assert (found.cause and found.cause.told) == told
    assert line in found.line
    assert bool(line) == bool(found.line)


@pytest.mark.parametrize(
    ("log", "told", "line"),
    [
        # the code in a traceback is no error
        (
            lines(
                f"{CORE}EngineCore failed to start.",
                f"{CORE}Traceback (most recent call last):",
                f"{CORE}    raise ValueError('CUDA out of memory')",
                f"{CORE}{UNKNOWN}",
            ),
            None,
            UNKNOWN,
        ),
        (
            lines(
                f"{CORE}Traceback (most recent call last):",
                f"{CORE}{OOM}",
                f"{CORE}",
                f"{CORE}During handling of the above exception, another exception occurred:",
                f"{CORE}",
                f"{CORE}Traceback (most recent call last):",
                f"{CORE}{HEADS}",
            ),
            TENSOR,
            HEADS,
        ),
        # other processes write on
        (
            lines(f"{CORE}{OOM}", *[f"{API}INFO 11-05 12:19:{n} [x.py:1] waits" for n in range(9)]),
            OUT_OF_MEMORY,
            OOM,
        ),
        # requests that were refused
        (
            lines(
                f"{API}ERROR 11-05 12:19:32 [serving_chat.py:300] {UNKNOWN}",
                f'{API}INFO:     127.0.0.1:4 - "POST /v1/completions HTTP/1.1" 400 Bad',
                f"{API}INFO:     Shutting down",
            ),
            None,
            "",
        ),
        (
            lines(
                f"{API}WARNING 11-05 12:19:32 [x.py:1] The NVIDIA driver on your system is too"
                " old (found version 11040)",
                f"{API}RuntimeError: No CUDA GPUs are available",
            ),
            "the NVIDIA driver is too old for its CUDA",
            "too old",
        ),
    ],
)
def test_the_error_that_ended_a_vllm_server(log: str, told: str | None, line: str) -> None:
    found = explain(log, VLLM) or Explanation("")
    assert (found.cause and found.cause.told) == told
    assert line in found.line
    assert bool(line) == bool(found.line)


def test_a_hint_belongs_to_the_engine() -> None:
    log = f"{CORE}nixl_cu13._bindings.nixlBackendError: NIXL_ERR_BACKEND"
    named = [cause(log, engine) for engine in (TRTLLM, VLLM, None)]
    assert all(one is not None and one[0] == "NIXL could not move the KV cache" for one in named)
    trtllm, vllm, guessed = (one[1] for one in named if one is not None)
    assert "cache_transceiver" in trtllm
    assert "cache_transceiver" not in vllm
    assert guessed == vllm


def test_a_row_of_one_engine_is_not_found_in_the_log_of_another() -> None:
    hang = "Hang detected on rank 0 in PyExecutor; hard-killing and propagating to peer ranks."
    assert find_known(hang, TRTLLM) is not None
    assert find_known(hang, VLLM) is None


def test_a_long_line_is_cut_and_many_errors_are_bounded() -> None:
    found = explain(f"{E}{OOM} {'x' * 5000}", TRTLLM)
    assert found is not None
    assert len(found.line) < LONGEST + 10
    many = explain(lines(f"{E}{OOM}", *[f"{E}{UNKNOWN} {n}" for n in range(6000)]), TRTLLM)
    assert many is not None
    assert many.cause is not None
