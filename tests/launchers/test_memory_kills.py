"""Test the evidence that the kernel killed a process for lack of main memory."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from serve_eval.errors import LaunchError
from serve_eval.launchers import trtllm
from serve_eval.launchers._fleet import fleet, running
from serve_eval.launchers._machine.memory_kills import Kills, kills
from serve_eval.schema import LaunchContext
from tests.launchers.processes import process_number


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/vmstat").write_text("pgfault 12\noom_kill 3\nnr_free 1\n")
    (tmp_path / "proc/self/cgroup").write_text("0::/a/b\n")
    return tmp_path


def counted(machine: Path) -> Kills:
    return kills(machine / "proc", machine / "cgroup")


@pytest.mark.parametrize(
    ("cgroup", "file", "text"),
    [
        ("0::/a/b\n", "a/b/memory.events", "low 0\nmax 9\noom 5\noom_kill 2\noom_group_kill 7\n"),
        ("0::/seen/from/outside\n", "memory.events", "oom_kill 2\n"),
        (
            "9:name=x:/\n4:memory:/a\n0::/\n",
            "memory/a/memory.oom_control",
            "under_oom 0\noom_kill 2\n",
        ),
        ("4:cpu,memory:/seen/outside\n", "memory/memory.oom_control", "oom_kill 2\n"),
    ],
)
def test_both_versions_of_cgroups_are_read(
    cgroup: str, file: str, text: str, machine: Path
) -> None:
    (machine / "proc/self/cgroup").write_text(cgroup)
    (machine / "cgroup" / file).parent.mkdir(parents=True, exist_ok=True)
    (machine / "cgroup" / file).write_text(text)
    assert counted(machine) == (2, 3)


def test_what_cannot_be_read_is_not_known(machine: Path) -> None:
    assert counted(machine) == (None, 3)
    (machine / "proc/vmstat").write_text("pgfault 12\n")
    (machine / "proc/self/cgroup").unlink()
    assert counted(machine) == (None, None)
    assert not counted(machine).is_known()
    assert Kills(None, 3).is_known()


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (Kills(0, 0), Kills(0, 0), ""),
        (Kills(0, 0), Kills(1, 1), "The kernel killed it, or another process of its cgroup"),
        (Kills(0, 0), Kills(0, 1), "a process of this machine"),
        (Kills(None, 4), Kills(None, 5), "a process of this machine"),
        (Kills(None, 4), Kills(None, None), ""),
        (Kills(None, None), Kills(1, 1), ""),
    ],
)
def test_only_a_count_that_grew_is_evidence(before: Kills, after: Kills, told: str) -> None:
    assert after.since(before).startswith(told) if not told else told in after.since(before)
    assert bool(after.since(before)) == bool(told)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("counts", "told", "not_told"),
    [
        (
            [Kills(0, 7), Kills(0, 7)],
            "other than the kernel's out-of-memory killer",
            "The kernel killed",
        ),
        ([Kills(0, 7), Kills(1, 8)], "The kernel killed it", "sent SIGKILL"),
        ([Kills(None, None)] * 2, "dmesg on its machine shows", "The kernel killed"),
    ],
)
def test_memory_is_blamed_only_with_evidence(
    counts: list[Kills],
    told: str,
    not_told: str,
    context: LaunchContext,
    standin: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel's counters are fake: a real lack of memory would hit other processes here."""
    standin()
    left = iter(counts)
    for module in (fleet, running):
        monkeypatch.setattr(module, "kills", lambda: next(left, counts[-1]))

    async def body() -> None:
        async with trtllm.launch(context, trtllm.TrtllmOptions()):
            os.kill(process_number(context, "trtllm"), signal.SIGKILL)
            await asyncio.sleep(60)

    with pytest.raises(LaunchError, match="trtllm ended with signal 9") as caught:
        asyncio.run(body())
    assert told in caught.value.hint
    assert not_told not in caught.value.hint
