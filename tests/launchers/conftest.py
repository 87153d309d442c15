"""What several tests of launchers need."""

from __future__ import annotations

from pathlib import Path

import pytest

from launchers import _gpus
from serve_eval.schema import LaunchContext


@pytest.fixture
def said() -> list[str]:
    """What a launch told."""
    return []


@pytest.fixture
def own_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Locks of GPUs and ports of the test's own, since others run beside it, and no GPUs whatever this machine has."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(_gpus, "memory_used", lambda: None)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


@pytest.fixture
def context(tmp_path: Path, said: list[str], own_machine: None) -> LaunchContext:
    """A launch with its logs in the test's folder."""
    return LaunchContext(model="org/model", log_dir=tmp_path / "logs", told=said.append)
