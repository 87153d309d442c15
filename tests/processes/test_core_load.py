"""Test the share of the time for which cores were busy, from files in the kernel's form."""

from __future__ import annotations

from pathlib import Path

import pytest

from serve_eval.processes import resources
from serve_eval.processes.resources import CoreLoad


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("STAT", "QUOTA", "USAGE"):
        monkeypatch.setattr(resources, name, tmp_path / name)
    return tmp_path


@pytest.mark.parametrize(
    ("later", "share"),
    [
        ("cpu 180 0 10 110 0 0 0 0 50 0", 0.9),
        ("cpu 100 0 0 200 0 0 0 0 0 0", 0.0),
        ("cpu 100 0 0 150 50 0 0 0 0 0", 0.0),  # waiting for a disk is idle
        ("cpu 100 0 0 100 0 40 40 20 0 0", 1.0),  # interrupts and time taken by others are busy
        ("cpu 100 0 0 100 0 0 0 0 0 0", None),
        ("nothing", None),
    ],
)
def test_cores_are_busy_where_they_are_not_idle(
    kernel: Path, later: str, share: float | None
) -> None:
    (kernel / "STAT").write_text("cpu 100 0 0 100 0 0 0 0 0 0\ncpu0 1 1\n")
    load = CoreLoad()
    (kernel / "STAT").write_text(f"{later}\ncpu0 1 1\n")
    assert load.share() == pytest.approx(share)


def test_a_quota_of_a_container_counts_if_more_of_it_is_used(
    kernel: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr(resources.time, "monotonic", lambda: clock[0])
    (kernel / "STAT").write_text("cpu 0 0 0 0 0 0 0 0 0 0\n")
    (kernel / "USAGE").write_text("usage_usec 1000000\nuser_usec 1\n")
    (kernel / "QUOTA").write_text("200000 100000\n")
    load = CoreLoad()
    clock[0] += 10.0
    (kernel / "STAT").write_text("cpu 10 0 0 990 0 0 0 0 0 0\n")
    (kernel / "USAGE").write_text("usage_usec 20000000\nuser_usec 1\n")
    assert load.share() == pytest.approx(0.95)
    (kernel / "QUOTA").write_text("max 100000\n")
    assert load.share() == pytest.approx(0.01)


def test_a_machine_without_these_files_tells_nothing(kernel: Path) -> None:
    assert CoreLoad().share() is None
