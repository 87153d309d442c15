"""Test runs attached to the servers of a mock cluster."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from launchers import kubernetes
from launchers._kubernetes import waiting, watch
from serve_eval.errors import LaunchError
from serve_eval.schema import Endpoint, LaunchContext
from tests.cli.command import serve_eval
from tests.launchers.kubernetes.mock_cluster import (
    DIGEST,
    SERVICE,
    MockCluster,
    container_status,
    pod,
    service,
)

RESTARTED = {
    "restarts": 1,
    "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}},
}


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "POLL_S", 0.05)
    monkeypatch.setattr(waiting, "POLL_S", 0.05)


def run(
    out: Path, data: Path, *more: str, limit: int = 40, concurrency: int = 4, **options: str
) -> Any:
    """Run gsm8k against the Service. The servers know no answer, and the reference expects none."""
    (references := data.parent / "references").mkdir(exist_ok=True)
    (references / "gsm8k.yaml").write_text("org/model:\n  - accuracy: 0.0\n")
    chosen = {"service": SERVICE, **options}
    settings = [word for k, v in chosen.items() for word in ("--set", f"launcher.{k}={v}")]
    return serve_eval(
        "run", "--launcher", "kubernetes", "--model", "org/model", "--tasks", "gsm8k",
        "--dataset-root", data, "--references-dir", references, "--limit", str(limit),
        "--concurrency", str(concurrency), "-o", out, *settings, *more,
    )  # fmt: skip


def test_the_report_of_a_run_has_digests_and_arguments(
    cluster: MockCluster, tmp_path: Path, data_root: Path
) -> None:
    cluster.add(service())
    cluster.add(pod("llama-0", args=("serve", "org/model", "--api-key", "to-hide")), any_model=True)
    cluster.logs["llama-0"] = ["2026-11-25T18:00:00.000000000Z it runs"]
    done = run(tmp_path / "run", data_root)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "run/report.json").read_text())
    text = json.dumps(report)
    assert DIGEST in text
    assert "to-hide" not in text
    assert "never-recorded" not in text
    log = tmp_path / "run/logs/llama-0-server.log"
    assert log.read_text() == "2026-11-25T18:00:00.000000000Z it runs\n"
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_restart_midway_ends_the_run_which_can_be_resumed(
    cluster: MockCluster, tmp_path: Path, data_root: Path
) -> None:
    cluster.add(service())
    cluster.add(pod("llama-0"), any_model=True, latency_s=0.05)
    cluster.previous["llama-0"] = "CUDA went away\n"
    thread = cluster.after(20, lambda: cluster.add(pod("llama-0", status=RESTARTED)))
    done = run(tmp_path / "run", data_root, limit=200)
    print(done.stderr)
    thread.join()
    assert done.returncode == 4
    assert "pod llama-0: container server restarted: OOMKilled, exit code 137" in done.stderr
    previous = tmp_path / "run/logs/llama-0-server.previous.log"
    assert str(previous) in done.stderr
    assert previous.read_text() == "CUDA went away\n"
    again = serve_eval("run", "--resume", tmp_path / "run")
    assert again.returncode == 0, again.stderr
