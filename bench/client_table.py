"""Print the table of the request client and its peers, measured on this machine.

Run `make bench`, or `make bench ARGS=--quick`. Every row runs once per round, and the figures are
medians over the rounds, so that other load on the machine affects all rows alike. Client and server
have a core each. The goals compare figures of this run only.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from client_rows import client_rows
from goals import goals
from lm_eval_rows import lm_eval_rows
from machine import facts, load, yardstick_s
from rows import TINY, NotInstalled, NotMeasured, Row, Size, slope_ms
from serving import Mode, Server
from tool_rows import mean_prompt, tool_rows
from wrk_rows import wrk_rows

ROW_MAKERS: tuple[Callable[[Size, Path], list[Row]], ...] = (
    wrk_rows,
    client_rows,
    tool_rows,
    lm_eval_rows,
)
"""Functions that make rows from a size and a scratch folder; add a function for more rows."""

COLUMNS = (
    "",
    "answers after",
    "in flight",
    "n",
    "CPU ms/req",
    "us/chunk",
    "req/s",
    "wall s",
    "peak MB",
)
COLUMNS += ("at server", "received", "ok")


def measure(rows: Sequence[Row], rounds: int) -> None:
    """Run the rounds. A failed row gets a `problem` and stops no other."""
    with ExitStack() as stack:
        servers: dict[Mode, Server] = {}
        for number in range(rounds):
            for i, row in enumerate(rows):
                if row.problem:
                    continue
                if row.mode not in servers:
                    servers[row.mode] = stack.enter_context(Server(row.mode))
                print(
                    f"\r\033[Kround {number + 1}/{rounds}, row {i + 1}/{len(rows)}: {row.name}",
                    end="",
                    file=sys.stderr,
                )
                server = servers[row.mode]
                server.reset()
                try:
                    row.runs.append(row.run(server))
                except Exception as error:
                    row.problem = str(error) if isinstance(error, NotMeasured) else repr(error)
                    row.failed = not isinstance(error, NotInstalled)
        print("\r\033[K", end="", file=sys.stderr)


def cells(row: Row) -> list[str]:
    """Return a row of the table as text."""
    after = f"{row.mode.latency_ms} ms"
    if row.chunks:
        after = f"{row.chunks} chunks, " + (
            f"{row.mode.chunk_ms} ms apart" if row.mode.chunk_ms else "at once"
        )
    median = row.median()
    if median is None:
        return [row.name, after, str(row.in_flight), str(row.n or "-"), row.problem]
    return [
        row.name,
        after,
        str(row.in_flight),
        str(median.n),
        f"{median.cpu_ms:.4f}",
        _or_dash(row.us_per_chunk, ".1f"),
        f"{median.n / median.wall_s:.0f}",
        f"{median.wall_s:.2f}",
        _or_dash(median.peak_rss_mb, ".0f"),
        # Without latency or chunks this is always 1.
        _or_dash(median.at_server, ".0f") if row.mode != Mode() else "-",
        _or_dash(median.received, ".0f"),
        f"{median.ok}/{median.n}" + (f" ({row.problem})" if row.problem else ""),
    ]


def _or_dash(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


def show(rows: Sequence[Row]) -> None:
    """Print the table."""
    lines = [list(COLUMNS), *(cells(row) for row in rows)]
    full = len(COLUMNS)
    # A problem replaces the figures of its row.
    known = [line if len(line) == full else line[:4] for line in lines]
    widths = [max(len(line[i]) for line in known if len(line) > i) for i in range(full)]
    for line in lines:
        texts = [
            text.ljust(widths[i]) if i < 2 else text.rjust(widths[i]) for i, text in enumerate(line)
        ]
        print("  ".join(texts).rstrip())


def show_tools(rows: Sequence[Row]) -> None:
    """Print what the whole tools cost per sample and before the samples.

    Their rows above hold both.
    """
    for name in dict.fromkeys(
        row.name for row in rows if row.median() and row.median().cpu_s_at_first
    ):
        sizes = sorted(
            (row for row in rows if row.name == name and row.in_flight == 512),
            key=lambda row: row.n,
        )
        per_sample = slope_ms(sizes[0], sizes[-1]) if len(sizes) > 1 else None
        first = sizes[0].median() if sizes else None
        if per_sample is not None and first is not None:
            fixed = first.cpu_s - per_sample * first.n / 1000
            print(
                f"  {name}: {first.cpu_s_at_first:.2f} s CPU until the server saw its first request"
                f" (n = {first.n}), {per_sample:.4f} ms per further sample (n = {sizes[0].n} to"
                f" {sizes[-1].n}), {fixed:.2f} s for what does not depend on n"
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="as many requests as this, times the usual"
    )
    parser.add_argument(
        "--quick", action="store_true", help="one round at a tenth of the requests: does it work?"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="every kind of row once, at the smallest size"
    )
    parser.add_argument(
        "--only", metavar="NAME,...", help="rows whose names begin with one of these"
    )
    given = parser.parse_args()
    rounds = 1 if given.quick or given.tiny else given.rounds
    size = TINY if given.tiny else Size(scale=0.1 if given.quick else given.scale)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="serve-eval-bench-") as folder:
        scratch = Path(folder)
        rows = [row for maker in ROW_MAKERS for row in maker(size, scratch)]
        if given.only:
            wanted = tuple(name.strip() for name in given.only.split(","))
            rows = [row for row in rows if row.name.startswith(wanted)]
        if given.tiny:
            rows = list({row.name: row for row in rows}.values())
        print(*facts(), sep="\n")
        print(f"load average {load()} before")
        measure(rows, rounds)
        print(f"medians of {rounds} interleaved rounds, load average {load()} after\n")
        show(rows)
        print()
        show_tools(rows)
        print(f"  prompts of the whole tools: {mean_prompt(scratch):.0f} characters on average")
        small = given.quick or given.tiny
        print(
            "\ngoals, by the figures above"
            + (" (a small run: not meant to be judged)" if small else "")
        )
        loop_s = yardstick_s()
        print(
            f"  a loop of bench/yardstick.py takes {loop_s:.3f} s here; the goals in us, ms and s"
        )
        print("  were set on a faster machine, where it was not measured: here, the ratios count")
        for goal in goals(rows, rounds):
            print(f"{goal}{goal.in_loops(loop_s)}")
    print(f"\n{time.monotonic() - began:.0f} s in all")
    if failed := [row for row in rows if row.failed]:
        sys.exit("\n".join(f"not measured: {row.name}: {row.problem}" for row in failed))


if __name__ == "__main__":
    main()
