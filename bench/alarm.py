"""Measure the CPU cost of the alarm within a run.

Run `python bench/alarm.py [SAMPLES [ROUNDS [IN_FLIGHT]]]`. The server answers immediately. Each
round has the same run with and without the alarm, one after the other, so that other load on the
machine affects both.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

from long_run import IN_FLIGHT, long_run
from serving import Mode, Server

SAMPLES, ROUNDS = 80_000, 5
MOST = 1.05
"""Largest ratio of CPU time with the alarm to that without it."""


def main() -> None:
    given = [int(number) for number in sys.argv[1:]]
    count, rounds, in_flight = (*given, *(SAMPLES, ROUNDS, IN_FLIGHT)[len(given) :])
    cpu_s: dict[bool, list[float]] = {True: [], False: []}
    with Server(Mode()) as server:
        for number in range(rounds):
            for alarm in (True, False) if number % 2 else (False, True):
                with tempfile.TemporaryDirectory(prefix="serve-eval-bench-") as folder:
                    cpu_s[alarm].append(
                        long_run(
                            server, count, Path(folder) / "run", in_flight=in_flight, alarm=alarm
                        ).cpu_s
                    )
    ratio = statistics.median(a / b for a, b in zip(cpu_s[True], cpu_s[False], strict=True))
    with_it, without = (1000 * statistics.median(cpu_s[alarm]) / count for alarm in (True, False))
    said = "reached" if ratio <= MOST else "MISSED"
    print(
        f"\n  {count} samples, {in_flight} in flight: {with_it:.4f} ms of CPU each with the alarm, "
        f"{without:.4f} without"
    )
    print(f"  {said:13} median ratio of {rounds} rounds: {ratio:.3f} (at most {MOST})")


if __name__ == "__main__":
    main()
