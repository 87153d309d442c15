"""Test the message about a server that printed a log and ended, with real processes."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers import llama_cpp, trtllm, vllm
from serve_eval.schema import LaunchContext
from tests.launchers.failure_logs import every

OPTIONS: dict[ModuleType, Any] = {
    llama_cpp: llama_cpp.LlamaCppOptions,
    trtllm: trtllm.TrtllmOptions,
    vllm: vllm.VllmOptions,
}
SCRIPT = """#!/bin/bash
for word in "$@"; do [ "$word" = --help ] && {{
  echo "Usage: trtllm-serve serve [OPTIONS] MODEL"
  for o in --host --port --tp_size --pp_size --cp_size --ep_size --backend --config; do
    echo "  $o TEXT"
  done
  exit 0
}}; done
cat {log}
{end}
"""
EXIT, KILL = "exit {0}", "kill -9 $$"
SHUTDOWN = "\n".join(
    f"(APIServer pid=12) INFO 11-30 00:53:34 [core_client.py:{n}] [shutdown] MPClient: step {n}"
    for n in range(16)
)


def message(
    launcher: ModuleType, log: str, context: LaunchContext, tmp_path: Path, end: str
) -> LaunchError:
    """Launch a server that prints a log and ends; return the error of the launch."""
    (tmp_path / "words.log").write_text(log)
    script = tmp_path / "server"
    script.write_text(SCRIPT.format(log=tmp_path / "words.log", end=end))
    script.chmod(0o755)
    command = str(script) if launcher is llama_cpp else f"{script} serve"
    options = OPTIONS[launcher](model="/models/m", command=command, ready_timeout_s=20.0)

    async def story() -> None:
        async with launcher.launch(context, options):
            raise AssertionError("it is not ready")

    with pytest.raises(LaunchError) as found:
        asyncio.run(story())
    return found.value


@pytest.mark.parametrize(
    ("launcher", "name", "told", "do"),
    [
        (trtllm, "trtllm_port", "its port is taken", "Leave `port` out"),
        (trtllm, "trtllm_heads", "does not divide the model's heads", "Set tp to"),
        (trtllm, "trtllm_nccl_shm", "too little shared memory (/dev/shm)", "--shm-size"),
        (vllm, "vllm_oom_core", "out of GPU memory", "--gpu-memory-utilization"),
        (vllm, "vllm_nixl", "NIXL could not move the KV cache", "VLLM_NIXL_SIDE_CHANNEL_HOST"),
        (vllm, "vllm_disk", "the disk is full", "df -h"),
        (llama_cpp, "llama_cpu_then_magic", "its model is no GGUF file", "head -c 4"),
        (llama_cpp, "llama_oom_context", "out of GPU memory", "gpu_layers"),
    ],
)
def test_the_cause_is_in_the_message(
    launcher: ModuleType,
    name: str,
    told: str,
    do: str,
    context: LaunchContext,
    tmp_path: Path,
) -> None:
    [log] = [one.log for one in every() if one.name == name]
    error = message(launcher, log, context, tmp_path, EXIT.format(1))
    assert "ended with exit code 1" in str(error).splitlines()[0]
    assert told in str(error).splitlines()[0]
    assert do in str(error.hint)
    assert launcher is trtllm or "cache_transceiver" not in str(error.hint)


def test_a_server_that_ends_in_good_order_after_its_engine_died_tells_why(
    context: LaunchContext, tmp_path: Path
) -> None:
    [log] = [one.log for one in every() if one.name == "vllm_worker_died"]
    error = message(vllm, f"{log}\n{SHUTDOWN}\n", context, tmp_path, EXIT.format(0))
    first, second, *_ = str(error).splitlines()
    assert first.endswith(": a GPU computation failed with a fault")
    assert "ended with exit code 0" in first
    assert "an illegal memory access was encountered" in second


def test_the_first_error_is_shown_if_no_cause_is_known(
    context: LaunchContext, tmp_path: Path
) -> None:
    [one] = [one for one in every() if one.name == "vllm_unlisted"]
    error = message(vllm, f"{one.log}\n{SHUTDOWN}\n", context, tmp_path, EXIT.format(1))
    first, second, *_ = str(error).splitlines()
    assert "exit code 1" in first
    assert ": " not in first
    assert one.line in second


@pytest.mark.parametrize("name", ["trtllm_hang_detector", "trtllm_mpi_abort"])
def test_a_kill_by_the_engine_itself_is_blamed_on_nobody_else(
    name: str, context: LaunchContext, tmp_path: Path
) -> None:
    [one] = [one for one in every() if one.name == name]
    error = message(trtllm, one.log, context, tmp_path, KILL)
    assert "signal 9" in str(error).splitlines()[0]
    assert "hang detector" in str(error) or "MPI_ABORT" in str(error).splitlines()[0]
    assert "watchdog" not in str(error.hint)
    assert "a person" not in str(error.hint)


def test_a_kill_that_the_log_does_not_explain_names_who_may_have_sent_it(
    context: LaunchContext, tmp_path: Path
) -> None:
    log = "[11/02/2026-09:00:01] [TRT-LLM] [I] Loading weights"
    error = message(trtllm, log, context, tmp_path, KILL)
    assert "sent SIGKILL" in str(error.hint)
