"""How long the command takes to answer, as medians in one run: `python bench/startup.py`."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import serve_eval": ["-c", "import serve_eval"],
    "serve-eval --version": ["-m", "serve_eval", "--version"],
    "serve-eval --help": ["-m", "serve_eval", "--help"],
    "serve-eval run --help": ["-m", "serve_eval", "run", "--help"],
}
ROUNDS = 9


def main() -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(ROUNDS):
        for name, arguments in COMMANDS.items():
            began = time.perf_counter()
            subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
            times[name].append(time.perf_counter() - began)
    print(f"wall seconds, median of {ROUNDS} interleaved rounds")
    for name, values in times.items():
        print(f"  {name:24} {statistics.median(values):.3f}")


if __name__ == "__main__":
    main()
