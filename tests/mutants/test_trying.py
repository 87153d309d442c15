"""Test what counts as noticed when the machine is busy."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tests.mutants.trying import tried

SECONDS = {"tests/test_a.py::test_x": 1.0, "tests/test_a.py::test_y[1]": 3.0}


class Machine:
    """Answers jobs with the statuses and seconds of a script, and keeps the jobs."""

    def __init__(self, *script: tuple[int | None, float]) -> None:
        self._script, self.jobs = list(script), list[dict[str, Any]]()

    def done(self, job: dict[str, Any]) -> dict[str, Any]:
        self.jobs.append(job)
        status, seconds = self._script.pop(0)
        return {"status": status, "seconds": seconds, "output": ""}


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ([(0, 3.0)], "survived"),
        ([(5, 0.1)], "survived"),
        ([(1, 9.0)], "killed"),
        ([(-signal.SIGSEGV, 2.0)], "killed"),
        ([(1, 9.1), (0, 4.0)], "killed"),
        ([(None, 31.0), (0, 15.5)], "timeout"),
        ([(-signal.SIGALRM, 19.0), (0, 4.0)], "timeout"),
        ([(None, 31.0), (0, 15.6), (None, 62.0), (0, 31.0)], "timeout"),
        ([(None, 31.0), (None, 31.0), (0, 40.0)], "survived"),
        ([(1, 20.0), (1, 20.0), (1, 3.0)], "killed"),
        ([(None, 31.0), (1, 3.0)] * 4, "undecided"),
    ],
)
def test_what_took_long_counts_only_if_the_unchanged_code_passes_then(
    script: list[tuple[int | None, float]], outcome: str
) -> None:
    machine = Machine(*script)
    assert tried(machine.done, {"a.py": "changed"}, SECONDS)["outcome"] == outcome
    assert [bool(job["files"]) for job in machine.jobs] == [
        number % 2 == 0 for number in range(len(script))
    ]


def test_limits_double_with_each_attempt() -> None:
    machine = Machine(*[(None, 31.0), (1, 3.0)] * 4)
    tried(machine.done, {"a.py": "changed"}, SECONDS)
    assert [job["limit_s"] for job in machine.jobs[::2]] == [31.0, 62.0, 124.0, 248.0]
    first, second = machine.jobs[0], machine.jobs[2]
    assert first["tests"] == dict(zip(SECONDS, (19.0, 27.0), strict=True))
    assert second["tests"] == dict(zip(SECONDS, (38.0, 54.0), strict=True))
    assert first["paths"] == ["tests/test_a.py"]
