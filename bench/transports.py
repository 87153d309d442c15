"""Compare the client over both of its transports in one table.

Run `python bench/transports.py`. Every row runs once per round, in alternating order, and the
figures are medians. Client and server have a core each. The server sends the first token of a
stream as soon as it has the request, so the time to the first token is all error: that of the
client, its kernel and a busy server. Requests that open connections are left out of it.

Rows of a whole run are `serve-eval run` in a process, from its start to its report, including task,
journal and scoring.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from long_run import RunFailed, long_run
from machine import facts, load
from processes import run
from serving import Mode, Server

TRANSPORTS = {"ours": "HTTP/1.1 of ours", "ours_aiohttp": "aiohttp"}
AT_ONCE, SPACED = Mode(), Mode(chunk_ms=10)
Case = tuple[str, Mode, int, int]
CASES: tuple[Case, ...] = (
    ("whole", AT_ONCE, 64, 10_000),
    ("whole", AT_ONCE, 512, 10_000),
    ("streams", AT_ONCE, 64, 1_000),
    ("streams", AT_ONCE, 512, 1_000),
    ("streams, 10 ms apart", SPACED, 64, 256),
    ("streams, 10 ms apart", SPACED, 512, 2_048),
)
TINY: tuple[Case, ...] = (("whole", AT_ONCE, 4, 16), ("streams", AT_ONCE, 4, 16))
RUNS: tuple[Case, ...] = (("whole", AT_ONCE, 64, 5_000), ("whole", AT_ONCE, 512, 5_000))
TINY_RUNS: tuple[Case, ...] = (("whole", AT_ONCE, 4, 60),)
FIELDS = ("cpu_us", "per_s", "peak_rss_mb", "late_ms")


def measure(
    server: Server, name: str, streamed: bool, in_flight: int, n: int
) -> dict[str, float | None]:
    """Run one client in its own process. Exit if an answer is wrong."""
    script = str(Path(__file__).with_name("one_client.py"))
    command = [sys.executable, script, name, "--base-url", server.base_url, "--n", str(n)]
    server.reset()
    ended = run(
        [*command, "--concurrency", str(in_flight), *(["--stream"] if streamed else [])],
        limit_s=120,
    )
    told = json.loads(ended.out) if not ended.code else {}
    if told.get("ok") != n:
        sys.exit(f"{name}: {told or ended.last_words}")
    first_s = told.get("first_token_s")
    return {
        "cpu_us": 1e6 * told["cpu_s"] / n,
        "per_s": n / told["wall_s"],
        "peak_rss_mb": told["peak_rss_mb"],
        "late_ms": None if first_s is None else 1000 * first_s,
    }


def measure_run(server: Server, name: str, in_flight: int, n: int) -> dict[str, float | None]:
    """Run the whole tool in its own process. Exit if a sample is not scored right."""
    server.reset()
    with tempfile.TemporaryDirectory() as folder:
        try:
            aiohttp = name == "ours_aiohttp"
            ended = long_run(server, n, Path(folder) / "run", in_flight=in_flight, aiohttp=aiohttp)
        except RunFailed as error:
            sys.exit(f"{name}: {error}")
    return {
        "cpu_us": 1e6 * ended.cpu_s / n,
        "per_s": n / ended.wall_s,
        "peak_rss_mb": ended.peak_rss_mb,
        "late_ms": None,
    }


HEADINGS = [
    "answers",
    "in flight",
    "transport",
    "req/s",
    "CPU us/request",
    "peak MB",
    "error of first token, ms",
]
Found = dict[tuple[int, str], list[dict[str, float | None]]]


def rows(rounds: int, cases: Sequence[Case]) -> list[list[str]]:
    """Return the rows of the client alone, case by case and transport by transport."""
    found: Found = {}
    modes = dict.fromkeys(of for _, of, _, _ in cases)
    for number, mode in product(range(rounds), modes):
        names = list(TRANSPORTS) if number % 2 else list(TRANSPORTS)[::-1]
        with Server(mode) as server:
            for i, (answers, of, in_flight, n) in enumerate(cases):
                for name in names if of is mode else ():
                    found.setdefault((i, name), []).append(
                        measure(server, name, answers.startswith("streams"), in_flight, n)
                    )
    return _lines(found, cases)


def rows_of_runs(rounds: int, cases: Sequence[Case]) -> tuple[list[list[str]], list[str]]:
    """Return the rows of whole runs, and for each case the ratios of aiohttp to ours.

    The ratios are taken within the rounds.
    """
    found: Found = {}
    with Server(AT_ONCE) as server:
        for number, (i, (_, _, in_flight, n)) in product(range(rounds), enumerate(cases)):
            for name in list(TRANSPORTS) if number % 2 else list(TRANSPORTS)[::-1]:
                found.setdefault((i, name), []).append(measure_run(server, name, in_flight, n))
    named = [(f"{answers}, a run of {n}", of, in_flight, n) for answers, of, in_flight, n in cases]
    ours, other = TRANSPORTS
    told = []
    for i, (answers, _, in_flight, _) in enumerate(named):
        ratios = [_ratios(found[i, other], found[i, ours], field) for field in ("cpu_us", "per_s")]
        shown = [f"{statistics.median(of):.2f} ({min(of):.2f} to {max(of):.2f})" for of in ratios]
        told.append(
            f"{answers}, {in_flight} in flight, aiohttp to ours: CPU {shown[0]}, req/s {shown[1]}"
        )
    return _lines(found, named), told


def _ratios(
    runs: list[dict[str, float | None]], others: list[dict[str, float | None]], field: str
) -> list[float]:
    return [
        (run[field] or 0.0) / (other[field] or 1.0) for run, other in zip(runs, others, strict=True)
    ]


def _lines(found: Found, cases: Sequence[Case]) -> list[list[str]]:
    lines = []
    for i, (answers, of, in_flight, _) in enumerate(cases):
        for name, shown in TRANSPORTS.items():
            cpu_us, per_s, peak_mb, late_ms = (_median(found[i, name], field) for field in FIELDS)
            after = f"{late_ms:.1f}" if late_ms is not None and of is SPACED else "-"
            lines.append(
                [
                    answers,
                    str(in_flight),
                    shown,
                    f"{per_s:.0f}",
                    f"{cpu_us:.1f}",
                    f"{peak_mb:.0f}",
                    after,
                ]
            )
    return lines


def _median(runs: list[dict[str, float | None]], field: str) -> float | None:
    known = [value for run in runs if (value := run[field]) is not None]
    return statistics.median(known) if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tiny", action="store_true", help="few small rows once: does it work?")
    parser.add_argument("--runs", action="store_true", help="whole runs alone")
    given = parser.parse_args()
    print(*facts(), sep="\n")
    print(f"medians of {given.rounds} alternating rounds, load average {load()} before\n")
    lines = [] if given.runs else rows(given.rounds, TINY if given.tiny else CASES)
    of_runs, told = rows_of_runs(given.rounds, TINY_RUNS if given.tiny else RUNS)
    table = [HEADINGS, ["---"] * len(HEADINGS), *lines, *of_runs]
    print(
        "\n".join(f"| {' | '.join(line)} |" for line in table),
        "",
        *told,
        f"load average {load()} behind",
        sep="\n",
    )


if __name__ == "__main__":
    main()
