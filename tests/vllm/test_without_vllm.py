"""Test what the trials of vLLM read in printed words, without vLLM."""

import pytest

from serve_eval.evidence.attribution.latency import describe_slow
from serve_eval.evidence.engine_counters import list_transfer_faults, remarks
from serve_eval.processes.resources import describe_busy
from serve_eval.schema import EngineCounts, EngineReport, ServerCounts, WorkerTimes
from tests.vllm.deployments import find_missing_kernel
from tests.vllm.pair_trials import find_accusations

WORKER = "(Worker pid=57) ERROR 11-30 04:04:51 [multiproc_executor.py:1063] "
CORE = "(EngineCore pid=51) ERROR 11-30 04:04:51 [core.py:1512] "
FLOAT = "NotImplementedError: \"cpu_gemm_wna16\" not implemented for 'Float'"
CACHE = "NotImplementedError: FP8 KV cache on CPU requires x86 with AVX-512 or AMX."
DEAD = (
    "(APIServer pid=44) ERROR 11-30 04:04:51 [async_llm.py:906]"
    " vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue."
    " See stack trace (above) for the root cause."
)


@pytest.mark.parametrize("line", [WORKER + FLOAT, CORE + CACHE])
def test_the_server_s_own_line_is_the_reason(line, tmp_path):
    (tmp_path / "vllm.log").write_text(f"INFO starting\n{line}\n{DEAD}\n")
    assert find_missing_kernel(tmp_path) == line.partition(") ")[2]


@pytest.mark.parametrize(
    "log",
    [
        f"{CORE}ValueError: To serve at least one request with the model's max seq len (8192), 1.0"
        f" GiB KV cache is needed, larger than the available KV cache memory (0.5 GiB).\n{DEAD}",
        f"{CORE}RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x64 and 32x64)\n{DEAD}",
        "(EngineCore pid=51) INFO 11-30 04:04:51 [cpu.py:1] CPUInt8Kernel requires AMX tile support"
        f" (Sapphire Rapids or newer).\n{CORE}RuntimeError: Address already in use\n{DEAD}",
        "INFO 11-30 04:04:51 [api_server.py:1] ready\nINFO 11-30 04:04:59 [launcher.py:1] Killed",
        "",
    ],
    ids=["cache too small", "another error", "only an information", "killed", "silent"],
)
def test_a_server_that_ends_for_another_reason_is_none(log, tmp_path):
    (tmp_path / "vllm.log").write_text(log)
    assert find_missing_kernel(tmp_path) is None


def test_a_server_without_a_log_gave_no_reason(tmp_path):
    assert find_missing_kernel(tmp_path) is None


URL = "http://127.0.0.1:1/v1"
SLOW = WorkerTimes(
    worker=URL,
    role="server",
    taken_s=2.6,
    others_s=0.5,
    longer=31,
    answers=34,
    p=0.0,
    p_holm=0.0,
    slow=True,
)


def _counted(**counts):
    return ServerCounts(server="context_0", url=URL, counts=EngineCounts(**counts))


def _others():
    report = EngineReport(servers=(_counted(requests=90),), sent=40, answered=40)
    return "\n".join(remarks([report]))


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (
            list_transfer_faults([_counted(transfer_faults={"expired requests": 1})])[0],
            "the transfer failed",
        ),
        (_others(), "other clients"),
        (describe_slow(SLOW), "B is slower"),
    ],
)
def test_an_accusation_is_known(line, kind):
    assert [found for found, _ in find_accusations(f"warning: {line}")] == [kind]


def test_what_says_nothing_of_a_server_is_none():
    line = describe_slow(SLOW).replace("slow_worker", "busy_cores")
    assert find_accusations(f"warning: {line}, {describe_busy(0.97)} it\nPASS") == ()
