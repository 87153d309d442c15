"""Measure the process that draws the pictures of a page: `python bench/pictures.py`.

It prints the least processor time of some trials, and the memory of the largest process so far.
"""

from __future__ import annotations

import resource
import tempfile
from collections.abc import Callable
from pathlib import Path

from serve_eval.processes.child_process import run_limited
from serve_eval.report.drawing_process import MEMORY_BYTES
from serve_eval.report.pictures import draw_boxes
from serve_eval.report.pictures.picture import draw_all

TRIALS = 5


def main() -> None:
    """Print a line for a process that draws nothing, and for pages with 1, 5 and 20 pictures."""
    picture = draw_boxes("lengths", {"right": [1.0, 2.0, 3.0]}, "tokens")
    assert picture is not None
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "nothing.py"
        script.write_text("")
        _measure(
            "nothing", lambda: run_limited(script, b"", limit_s=60.0, memory_bytes=MEMORY_BYTES)
        )
    for n in (1, 5, 20):
        _measure(f"{n} pictures", lambda pictures=[picture] * n: draw_all(pictures))  # type: ignore[misc]


def _measure(name: str, run: Callable[[], object]) -> None:
    least = min(_time(run) for _ in range(TRIALS))
    memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024.0
    print(f"{name:12} {1000.0 * least:6.0f} ms of processor time, {memory:4.0f} MB")


def _time(run: Callable[[], object]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


if __name__ == "__main__":
    main()
