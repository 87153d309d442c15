"""Test how logs of containers are followed into files."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from serve_eval.launchers._kubernetes import logs
from serve_eval.launchers._kubernetes.cluster import connect
from serve_eval.launchers._kubernetes.pods import read_pod
from tests.launchers.kubernetes.mock_cluster import MockCluster, pod

DAY = "2026-11-25T18:00:"


def follow(cluster: MockCluster, folder: Path, seconds: float = 0.3) -> list[str]:
    """Follow the log of a pod for some seconds, and return what was said."""
    said: list[str] = []

    async def story() -> None:
        async with (
            connect(None, None, None) as api,
            logs.follow_logs(api, [read_pod(pod("llama-0"))], folder, said.append),
        ):
            await asyncio.sleep(seconds)

    asyncio.run(story())
    return said


def test_lines_are_written_once_when_the_log_breaks_off(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "AGAIN_S", 0.05)
    cluster.add(pod("llama-0"))
    lines = cluster.logs["llama-0"] = [f"{DAY}00.000000000Z one", f"{DAY}00.000000001Z two"]
    cluster.later(0.1, cluster.break_streams)
    cluster.later(0.15, lambda: lines.append(f"{DAY}00.000000002Z three"))
    assert follow(cluster, tmp_path, 0.5) == []
    path = tmp_path / "llama-0-server.log"
    assert path.read_text().splitlines() == lines
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_log_that_may_not_be_read_is_told_once(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "AGAIN_S", 0.05)
    cluster.add(pod("llama-0"))
    cluster.forbidden = "log"
    [said] = follow(cluster, tmp_path)
    assert said.startswith("warning: the log of llama-0 cannot be read: log is forbidden")


def test_a_log_that_grows_too_large_ends_with_a_line_that_says_so(
    cluster: MockCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "MOST_BYTES", 100)
    cluster.add(pod("llama-0"))
    cluster.logs["llama-0"] = [f"{DAY}{i:02}.000000000Z a line of the log" for i in range(60)]
    follow(cluster, tmp_path)
    text = (tmp_path / "llama-0-server.log").read_text()
    assert len(text) < 10_000
    assert text.endswith("(serve-eval: the log is too large to follow it any further)\n")


def test_no_link_is_followed(cluster: MockCluster, tmp_path: Path) -> None:
    (folder := tmp_path / "logs").mkdir()
    (folder / "llama-0-server.log").symlink_to(tmp_path / "elsewhere")
    cluster.add(pod("llama-0"))
    [said] = follow(cluster, folder, 0.1)
    assert said.startswith("warning: a log could not be written: ")
    assert not (tmp_path / "elsewhere").exists()
