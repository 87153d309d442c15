"""Compare what serve-eval costs with the committed table; exit with 1 if a row costs more.

Run `make bench-gate`, or `make bench-gate UPDATE=1 REASON="why"` to write the table. Every figure
is divided by those of a fixed loop and of a bare aiohttp client, measured in turn with it, so that
it is one of the product and hardly of the machine. A row that costs more is measured up to three
times more before it fails.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from cores import raise_open_files
from gate_measure import ONCE, SUBJECTS, Bench, NotMeasured, servers
from gate_rows import rows
from gate_table import TABLE, TOLERANCE, Judged, judge, load, misuses, save
from machine import load as load_average

YARDSTICKS = ("yardstick", "bare")
ROUNDS, AGAIN, ROUNDS_OF_A_TABLE = 3, 3, 5
ENOUGH_S = 80.0
"""Time of the rounds, if no row costs more."""
COLUMNS = ("row", "value", "committed", "by the loop", "by the client", "verdict")


def measure(bench: Bench, subjects: Collection[str], rounds: int, *, in_s: float) -> None:
    """Measure the subjects in turn, each round beside the yardstick and the bare client.

    A further round begins only if it can end within `in_s` seconds.
    """
    began = time.monotonic()
    for number in range(rounds):
        if number and (time.monotonic() - began) * (number + 1) / number > in_s:
            break
        for subject in SUBJECTS:
            if subject in ONCE and number:
                continue
            if subject in subjects or subject in YARDSTICKS:
                tell(subject)
                bench.measure(subject)
    tell("")


def tell(subject: str) -> None:
    """Say on a terminal what is being measured."""
    if sys.stderr.isatty():
        print(f"\r\033[K{subject}", end="", file=sys.stderr, flush=True)


def judged(bench: Bench, subjects: Collection[str]) -> list[Judged]:
    """Judge the rows of the subjects. Measure those that cost more again before they fail."""
    table = load()
    made: list[Judged] = []
    for again in range(AGAIN + 1):
        made = [
            judge(row, bench.least, table.rows.get(row.name))
            for row in rows(bench.least)
            if set(row.subjects) <= set(subjects)
        ]
        above = [one for one in made if one.verdict == "MORE" and not one.row.exact]
        if not above or again == AGAIN:
            break
        names = ", ".join(one.row.name for one in above)
        print(f"measured again, {again + 1} of {AGAIN}: {names}", file=sys.stderr)
        measure(bench, {subject for one in above for subject in one.row.subjects}, 1, in_s=ENOUGH_S)
    return made


def show(made: Sequence[Judged]) -> None:
    """Print the table of the rows."""
    lines = [
        [
            one.row.name,
            f"{one.value:.4g} {one.row.unit}",
            "-" if one.committed is None else f"{one.committed:.4g}",
            *_two([f"{ratio:.2f}" for ratio in one.ratios]),
            one.verdict,
        ]
        for one in made
    ]
    widths = [max(len(line[at]) for line in (COLUMNS, *lines)) for at in range(len(COLUMNS))]
    for line in (COLUMNS, *lines):
        cells = [
            text.rjust(width) if 0 < at < 5 else text.ljust(width)
            for at, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        print("  ".join(cells).rstrip())


def _two(cells: list[str]) -> list[str]:
    """Return two cells; a row that does not depend on the machine has one ratio."""
    return (cells * 2)[:2] or ["-", "-"]


def complaints(made: Sequence[Judged], base: str | None) -> list[str]:
    """Return why the gate fails."""
    told = [f"{one.row.name}: {one.verdict.lower()}" for one in made if one.failed]
    return told + list(misuses(base))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--update", action="store_true", help="write the table")
    parser.add_argument("--reason", default="", help="why the table changes")
    parser.add_argument("--only", help=f"rows of these subjects: {', '.join(SUBJECTS)}")
    parser.add_argument("--base", help="commit before the change, to see what it touches")
    given = parser.parse_args()
    if given.update and (given.only or not given.reason.strip()):
        parser.error('--update writes all rows and needs --reason "..."')
    raise_open_files()
    began = time.monotonic()
    after_200_ms, at_once = servers()
    print(f"load average {load_average()} before")
    with (
        tempfile.TemporaryDirectory(prefix="serve-eval-gate-") as folder,
        after_200_ms,
        at_once,
    ):
        bench = Bench(after_200_ms, at_once, Path(folder))
        try:
            subjects = given.only.split(",") if given.only else list(SUBJECTS)
            wanted = {*subjects, *ONCE[:1]}
            if given.update:
                measure(bench, wanted, ROUNDS_OF_A_TABLE, in_s=math.inf)
            else:
                measure(bench, wanted, ROUNDS, in_s=ENOUGH_S)
            if given.update:
                save(rows(bench.least), bench.least, given.reason)
            made = judged(bench, subjects)
        except NotMeasured as error:
            sys.exit(f"bench-gate: not measured: {error}")
    show(made)
    loop_s, bare_ms = bench.least["yardstick_s"], bench.least["bare_ms"]
    print(f"\nyardstick loop {loop_s:.3f} s, bare client {bare_ms:.3f} ms a request")
    print(f"tolerance {TOLERANCE:.0%}, load average {load_average()} after")
    print(f"{time.monotonic() - began:.0f} s in all")
    if fallen := [one for one in made if one.verdict == "less"]:
        print(f"{len(fallen)} rows cost less than the table says: renew it to keep the gain")
    if given.update:
        print(f"written: {TABLE}. Commit it with the reason: {given.reason}")
    if told := complaints(made, given.base):
        sys.exit(
            "bench-gate: "
            + "\nbench-gate: ".join(told)
            + '\nIf that is meant: make bench-gate UPDATE=1 REASON="why"'
        )


if __name__ == "__main__":
    main()
