"""Test how the KV cache is transferred: the library, the UCX transports, and their report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from serve_eval.launchers import container, slurm, trtllm_disaggregated
from serve_eval.launchers._trtllm import deployments, server_variables
from serve_eval.launchers._trtllm.server_variables import Ways
from serve_eval.launchers._trtllm.servers import summarise_transfer
from serve_eval.schema import LaunchContext

UUID = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1)\n"


@pytest.fixture
def smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Write an nvidia-smi that prints the file `said` and exits with the code in `code`."""
    (path := tmp_path / "bin/nvidia-smi").parent.mkdir()
    path.write_text(
        f'#!/bin/sh\n[ "$*" = "nvlink -s" ] || exit 9\ncat {tmp_path}/said\nexit $(cat'
        f" {tmp_path}/code)\n"
    )
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{path.parent}:/usr/bin:/bin")
    return tmp_path


@pytest.mark.parametrize(
    ("text", "code", "found"),
    [
        (f"{UUID}\t Link 0: 26.562 GB/s\n\t Link 1: 26.562 GB/s\n", 0, True),
        (f"{UUID}\t Link 0: <inactive>\n\t Link 1: 25 GB/s\n", 0, True),
        (f"{UUID}\t Link 0: <inactive>\n", 0, False),
        (f"{UUID}Device does not have or support Nvlink\n", 0, False),
        ("", 1, False),
        (f"{UUID}\t Link 0: 25 GB/s\n", 1, False),
    ],
)
def test_links_are_those_that_nvidia_smi_shows(
    text: str, code: int, found: bool, smi: Path
) -> None:
    (smi / "said").write_text(text)
    (smi / "code").write_text(str(code))
    assert server_variables.nvlink() is found


def test_nothing_is_assumed_without_nvidia_smi(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert server_variables.nvlink() is None


@pytest.mark.parametrize(
    ("backend", "ways", "found"),
    [
        ("UCX", Ways(), {"UCX_TLS": "^ib"}),
        ("UCX", Ways(nvlink=True), {"UCX_TLS": "^ib"}),
        ("UCX", Ways(nvlink=False), {"UCX_TLS": "^cuda_ipc"}),
        ("nixl", Ways(nvlink=False), {"UCX_TLS": "^cuda_ipc", "UCX_MM_ERROR_HANDLING": "y"}),
        ("DEFAULT", Ways(), {"UCX_TLS": "^ib", "UCX_MM_ERROR_HANDLING": "y"}),
        ("NIXL", Ways(nvlink=False, own=frozenset({"UCX_TLS"})), {"UCX_MM_ERROR_HANDLING": "y"}),
        ("UCX", None, {}),
    ],
)
def test_the_ways_of_ucx(backend: str, ways: Ways | None, found: dict[str, str]) -> None:
    assert server_variables.variables(backend, ways) == found


@pytest.mark.parametrize(
    ("options", "ways", "told"),
    [
        ({}, Ways(nvlink=False), "UCX; no NVLink; UCX_TLS=^cuda_ipc"),
        ({}, Ways(), "UCX; NVLink not known; UCX_TLS=^ib"),
        (
            {"cache_transceiver": {"backend": "NIXL"}},
            Ways(nvlink=True),
            "NIXL; NVLink found; UCX_TLS=^ib",
        ),
        (
            {"cache_transceiver": {"backend": "DEFAULT"}},
            None,
            "DEFAULT, as this version reads it; NVLink not known",
        ),
        ({"env": {"UCX_TLS": None}}, Ways(nvlink=True), "UCX; NVLink found; UCX_TLS not set"),
        ({"env": {"UCX_TLS": "tcp,cuda"}}, Ways(own=frozenset({"UCX_TLS"})), "UCX_TLS=tcp,cuda"),
        ({}, Ways(own=frozenset({"UCX_TLS"})), "UCX_TLS as it was inherited"),
    ],
)
def test_what_is_told(
    options: dict[str, Any], ways: Ways | None, told: str, context: LaunchContext
) -> None:
    deployment = deployments.Disaggregated(**options)
    summary = summarise_transfer(deployment, context, ways)
    assert summary is not None
    assert told in server_variables.describe_transfer(summary)
    assert summarise_transfer(deployments.Aggregated(), context, ways) is None


def test_what_a_user_hands_on_is_not_set_anew(
    context: LaunchContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UCX_TLS", "cuda,tcp")
    monkeypatch.setenv("UCX_MM_ERROR_HANDLING", "n")
    nixl = {"cache_transceiver": {"backend": "NIXL"}}
    [first, *_] = trtllm_disaggregated.commands(
        context, trtllm_disaggregated.DisaggregatedOptions(pass_env=["UCX_TLS"], **nixl)
    )
    assert not [word for word in first if word.startswith("UCX_")]
    [first, *_] = trtllm_disaggregated.commands(
        context,
        trtllm_disaggregated.DisaggregatedOptions(
            pass_env=["UCX_TLS"], env={"UCX_TLS": "sm"}, **nixl
        ),
    )
    assert "UCX_TLS=sm" in first
    served = deployments.Disaggregated(pass_env=["UCX_TLS"], cache_transceiver={"backend": "NIXL"})
    [first, *_] = container.commands(
        context, container.ContainerOptions(image="i", trtllm_disaggregated=served)
    )
    assert [word for word in first if word.startswith("UCX_")] == [
        "UCX_MM_ERROR_HANDLING=y",
        "UCX_TLS",
    ]
    [first, *_] = slurm.commands(
        context, slurm.SlurmOptions(trtllm_disaggregated=served, nodes=["n1"], gpus_per_node=2)
    )
    assert not [word for word in first if word.startswith("UCX_")]


@pytest.mark.parametrize(
    ("names", "environ", "kept"),
    [
        ([], {"UCX_TLS": "tcp", "UCX_LOG_LEVEL": "warn"}, {"UCX_LOG_LEVEL"}),
        (["UCX_TLS"], {"UCX_TLS": "tcp"}, {"UCX_TLS"}),
        (["UCX_*"], {"UCX_TLS": "tcp"}, {"UCX_TLS"}),
        ([], {"UCX_TLS": "tcp", "SERVE_EVAL_PASS_ENV": "A, UCX_TLS"}, {"UCX_TLS"}),
        (["UCX_TLS"], {"PATH": "/bin"}, set()),
    ],
)
def test_the_ways_of_a_cluster_are_kept_only_where_they_are_named(
    names: list[str], environ: dict[str, str], kept: set[str]
) -> None:
    assert server_variables.list_inherited(names, environ) == kept
