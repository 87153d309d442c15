"""Measure time and memory of the commands that read finished runs of many samples.

Run `python bench/finished_runs.py [SAMPLES]`. Two runs of generated samples are made at half of the
size and at the whole one, so that it is seen whether time grows in proportion. Goal: at most
PEAK_MB each.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from long_run import LIMIT_S, RunFailed, long_run
from machine import facts
from processes import Finished, environment, run
from serving import Mode, Server

SAMPLES = 100_000
PEAK_MB = 400
TWICE = 2.4
"""Times the CPU time of half of the samples up to which it counts as in proportion."""
INCLUDE = ("--include-path", str(Path(__file__).with_name("include")))
WRITTEN = ("compared", "rescored", "exported")


def commands(a: Path, b: Path) -> Mapping[str, Sequence[str]]:
    """Return the commands on two runs, by name."""
    compared, rescored, exported = (str(a.with_name(name)) for name in WRITTEN)
    return {
        "compare": ("compare", str(a), str(b), *INCLUDE, "-o", compared),
        "diagnose": ("diagnose", str(a)),
        "rescore": ("judge", "--rescore", str(a), *INCLUDE, "-o", rescored),
        "export": ("runs", "export", str(a), *INCLUDE, "-o", exported),
    }


def measure(server: Server, count: int, scratch: Path) -> dict[str, Finished]:
    """Make two runs and return how each command ended on them."""
    a, b = scratch / "a", scratch / "b"
    for folder in (a, b):
        long_run(server, count, folder)
    done = {}
    for name, told in commands(a, b).items():
        command = [sys.executable, "-m", "serve_eval", *told]
        done[name] = run(command, limit_s=LIMIT_S, env=environment(scratch))
        if done[name].code:
            raise RunFailed(f"{name}: exit code {done[name].code}: {done[name].last_words}")
    for folder in (a, b, *(a.with_name(name) for name in WRITTEN)):
        shutil.rmtree(folder, ignore_errors=True)
    return done


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else SAMPLES
    print(*facts(), sep="\n")
    with (
        Server(Mode()) as server,
        tempfile.TemporaryDirectory(prefix="serve-eval-bench-") as folder,
    ):
        half, whole = (measure(server, n, Path(folder)) for n in (count // 2, count))
    print(f"\nruns of {count} samples, and of half as many")
    for name, done in whole.items():
        times = done.cpu_s / half[name].cpu_s
        said = "reached" if done.peak_rss_mb <= PEAK_MB and times <= TWICE else "MISSED"
        print(
            f"  {said:13} {name}: {done.peak_rss_mb:.0f} MB (at most {PEAK_MB}), {done.cpu_s:.1f} s"
            f" of CPU, {times:.2f} times that of half (at most {TWICE})"
        )


if __name__ == "__main__":
    main()
