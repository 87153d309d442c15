"""Measure the time that the command takes to answer, as medians of one run.

Run `python bench/startup.py [ROUNDS]`.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import serve_eval": ["-c", "import serve_eval"],
    "serve-eval --version": ["-m", "serve_eval", "--version"],
    "serve-eval --help": ["-m", "serve_eval", "--help"],
    "serve-eval run --help": ["-m", "serve_eval", "run", "--help"],
}
ROUNDS = 9


def median_seconds(commands: Mapping[str, Sequence[str]], rounds: int) -> dict[str, float]:
    """Return the wall seconds of each command by name, the median of interleaved rounds."""
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, arguments in commands.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - began)
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    print(f"wall seconds, median of {rounds} interleaved rounds")
    for name, seconds in median_seconds(COMMANDS, rounds).items():
        print(f"  {name:24} {seconds:.3f}")


if __name__ == "__main__":
    main()
