"""Test orchestrator files that the real parser accepts and refuses, and worker files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from serve_eval.launchers._standin.arguments import group
from serve_eval.launchers._standin.config import orchestrator
from serve_eval.launchers._standin.options import Flavour
from serve_eval.launchers._standin.worker_config import WorkerConfig, check_llm_args, worker

GEN = {"urls": ["c:3"]}
OWN: list[dict[str, Any]] = [
    {
        "config": {
            "context_servers": {"urls": ["a:1", "b:2"], "num_instances": 2},
            "generation_servers": GEN,
        },
        "rc": 0,
    },
    {"config": {"context_servers": {"urls": ["http://a:1"]}, "generation_servers": GEN}, "rc": 1},
    {
        "config": {
            "context_servers": {"urls": ["a:1"], "num_instances": 2},
            "generation_servers": GEN,
        },
        "rc": 1,
    },
    {
        "config": {"disagg_cluster": {"cluster_uri": "http://a:1", "inactive_interval_sec": 1}},
        "rc": 1,
    },
    {
        "config": {"node_id": 256},
        "rc": 1,
        "error": "ValueError: node_id must be in range [0, 256), got 256",
    },
]


def check(row: dict[str, Any]) -> None:
    if row["rc"]:
        with pytest.raises((ValueError, KeyError)) as refused:
            orchestrator(row["config"], "main")
        said = f"{type(refused.value).__name__}: {refused.value}"
        assert said == row.get("error", said)
        return
    parsed = orchestrator(row["config"], "main")
    wanted = row.get("parsed")
    if not wanted:
        return
    assert [server._asdict() for server in parsed.servers] == wanted["server_configs"]
    assert parsed.ctx_router._asdict() == wanted["ctx_router_config"]
    assert parsed.gen_router._asdict() == wanted["gen_router_config"]
    assert (parsed.urls("ctx"), parsed.urls("gen")) == (wanted["_ctx_addrs"], wanted["_gen_addrs"])
    assert (vars(parsed.cluster) if parsed.cluster else None) == wanted["disagg_cluster_config"]
    for name in (
        "hostname",
        "port",
        "max_retries",
        "perf_metrics_max_requests",
        "schedule_style",
        "num_workers",
    ):
        assert getattr(parsed, name) == wanted[name], name


@pytest.mark.parametrize("row", OWN, ids=lambda row: json.dumps(row["config"]))
def test_orchestrator_files_of_ours(row: dict[str, Any]) -> None:
    check(row)


def test_every_orchestrator_file_of_the_conformance_file(shared: Path) -> None:
    for row in json.loads((shared / "vectors/trtllm_serve_conformance.json").read_text())[
        "disagg_config"
    ]:
        check(row)


def _worker(argv: list[str], flavour: Flavour) -> WorkerConfig:
    command = group(
        flavour, lambda name, params, given: worker(params["model"], params, given, flavour)
    )
    parsed: WorkerConfig = command.main(argv, standalone_mode=False)
    return parsed


def test_the_file_wins_in_the_1_2_line_and_the_command_line_on_main(tmp_path: Path) -> None:
    file = tmp_path / "w.yaml"
    file.write_text("tensor_parallel_size: 4\nmax_batch_size: 7\n")
    argv = ["M", "--tp_size", "2", "--config", str(file)]
    assert _worker(argv, "v12").args["tensor_parallel_size"] == 4
    assert _worker(argv, "main").args["tensor_parallel_size"] == 2
    assert _worker([*argv, "--set", "kv_cache_config.dtype=fp8"], "main").args[
        "kv_cache_config"
    ] == {"dtype": "fp8"}
    assert _worker(argv, "main").args["max_batch_size"] == 7


def test_what_a_worker_refuses(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _worker(["M", "--config", str(tmp_path / "none.yaml")], "v12")
    with pytest.raises(AssertionError):
        _worker(["M", "--port", "0"], "v12")
    with pytest.raises(AssertionError):
        _worker(["M", "--disagg_cluster_uri", "http://a:1"], "v12")
    with pytest.raises(KeyError):
        _worker(["M", "--server_role", "boss"], "v12")
    with pytest.raises(ValueError, match="Invalid server role"):
        _worker(["M", "--server_role", "boss"], "main")
    with pytest.raises(ValidationError, match="extra_forbidden"):
        check_llm_args({"tensor_paralel_size": 2})
    with pytest.raises(ValidationError):
        check_llm_args({"cache_transceiver_config": {"backend": "ucx"}})
    assert _worker(["M", "--port", "0", "--report_addr", "f"], "main").report_addr == Path("f")
