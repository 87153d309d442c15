"""Measure two checkouts in turn and print the ratios of medians.

Taking turns spreads other load of the machine over both.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.before_after.checkout import Checkout, Ended

FEW, MANY, SHORT = 200, 10_200, 20
IN_FLIGHT = 128
LIMIT_S = 3600.0
SERVER = "bench/server.py"
"""The server of the first checkout serves both: it answers immediately and costs almost nothing."""
INCLUDE = "bench/include"
NO_REFERENCE = 3
Figures = dict[str, list[float]]


def print_speed(before: Path, after: Path, *, rounds: int, samples: int) -> int:
    """Print one table: medians of both, and their ratio."""
    with tempfile.TemporaryDirectory(prefix="before-after-") as name, _server(before) as url:
        sides = [
            _side(root, Path(name) / side, url)
            for side, root in (("before", before), ("after", after))
        ]
        figures: list[Figures] = [{}, {}]
        for number in range(rounds + 1):  # the first round compiles the modules and is discarded
            for place in (0, 1) if number % 2 else (1, 0):
                for what, measured in _round(sides[place]).items():
                    figures[place].setdefault(what, []).extend([measured] if number else [])
            print(f"round {number} of {rounds}", file=sys.stderr, flush=True)
        peak = f"peak memory of {samples} samples, MB"
        for place, side in enumerate(sides):
            figures[place][peak] = [_run(side, "peak", samples, in_flight=512).peak_mb]
    print(
        f"{'medians of ' + str(rounds) + ' rounds in turn':48} {'before':>10} {'after':>10}"
        f" {'ratio':>7}"
    )
    for what, values in figures[0].items():
        one, two = statistics.median(values), statistics.median(figures[1][what])
        print(
            f"{what:48} {one:10.4f} {two:10.4f} {two / one:7.3f}"
            if one > 0
            else f"{what:48} {one:10.4f} {two:10.4f}"
        )
    return 0


def _round(side: _Side) -> Mapping[str, float]:
    few, many = (_run(side, "sums", count, in_flight=IN_FLIGHT) for count in (FEW, MANY))
    overview, options = _help(side.tool, "--help"), _help(side.tool, "run", "--help")
    return {
        f"CPU ms per further sample ({FEW} to {MANY})": (
            1000 * (many.cpu_s - few.cpu_s) / (MANY - FEW)
        ),
        f"CPU s of a run of {FEW}": few.cpu_s,
        "serve-eval --help, wall s": overview.wall_s,
        "serve-eval --help, CPU s": overview.cpu_s,
        "serve-eval run --help, wall s": options.wall_s,
        "serve-eval run --help, CPU s": options.cpu_s,
        f"wall s of a run of {SHORT} requests": (
            _run(side, "short", SHORT, in_flight=IN_FLIGHT).wall_s
        ),
    }


def _help(tool: Checkout, *arguments: str) -> Ended:
    ended = tool.serve_eval(*arguments)
    if ended.code:
        raise SystemExit(f"{tool.root}: {' '.join(arguments)}: {ended.last_words}")
    return ended


class _Side:
    """A checkout, the server that it asks, and the number of its runs so far."""

    def __init__(self, tool: Checkout, url: str) -> None:
        self.tool, self.url, self.runs = tool, url, 0


def _side(root: Path, scratch: Path, url: str) -> _Side:
    scratch.mkdir()
    tool = Checkout(root=root, cwd=scratch, scratch=scratch)
    tool.check()
    return _Side(tool, url)


def _run(side: _Side, name: str, count: int, *, in_flight: int) -> Ended:
    """Evaluate that many generated sums.

    Raises SystemExit unless all of them were scored as right.
    """
    side.runs += 1
    folder = f"{name}_{side.runs}"
    flags = [
        "--include-path",
        str(side.tool.root / INCLUDE),
        "--tasks",
        "sums",
        "--set",
        f"sums.num_samples={count}",
    ]
    flags += [
        "--base-url",
        side.url,
        "--model",
        "m",
        "--no-reference",
        "--concurrency",
        str(in_flight),
    ]
    ended = side.tool.serve_eval("run", *flags, "-o", folder, limit_s=LIMIT_S)
    if ended.code != NO_REFERENCE:
        raise SystemExit(f"{side.tool.root}: exit code {ended.code}: {ended.last_words}")
    result = json.loads((side.tool.cwd / folder / "report.json").read_bytes())["tasks"][0]["result"]
    if (result["scored"], result["value"]) != (count, 100.0):
        raise SystemExit(
            f"{side.tool.root}: {result['scored']} of {count} scored, value {result['value']}"
        )
    return ended


@contextmanager
def _server(root: Path) -> Iterator[str]:
    """Run the server of the benchmarks, which ends with its standard input."""
    command = [sys.executable, str(root / SERVER)]
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        if not port:
            raise SystemExit(f"{command[1]} did not start")
        yield f"http://127.0.0.1:{port}/v1"
