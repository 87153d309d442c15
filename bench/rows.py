"""A row of the table: its command, its server and its results."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields

from serving import Mode, Server


class NotMeasured(Exception):
    """Says why a row has no figures: it is too slow or failed. The benchmark then fails too."""


class NotInstalled(NotMeasured):
    """The subject of a row is not installed: the table says so, and the benchmark does not fail."""

    def __init__(self, name: str) -> None:
        super().__init__(f"not installed: {name}")


@dataclass(frozen=True, slots=True)
class Size:
    """Sizes of the rows.

    `scale` multiplies the usual number of requests. `most` limits the requests in flight, whatever
    number the name of a row has. At the smallest size a row only shows that it works.
    """

    scale: float = 1.0
    most: int | None = None

    def in_flight(self, usual: int) -> int:
        """Return the requests in flight for a row that usually has `usual`."""
        return usual if self.most is None else min(usual, self.most)

    def requests(self, usual: int, least: int) -> int:
        """Return the requests for a row that usually has `usual`, at least `least`."""
        return max(int(usual * self.scale), least)


TINY = Size(scale=0.0, most=4)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One run of a row.

    `ok` counts whole and right answers. `received` and `at_server` are the server's counts of
    requests and of the most in progress at the same time. `cpu_s_at_first` is the CPU time of the
    process at its first request.
    """

    n: int
    ok: int
    cpu_s: float
    wall_s: float
    peak_rss_mb: float | None = None
    received: int | None = None
    at_server: int | None = None
    cpu_s_at_first: float | None = None

    @property
    def cpu_ms(self) -> float:
        """CPU milliseconds per request."""
        return 1000 * self.cpu_s / self.n


@dataclass(slots=True, kw_only=True)
class Row:
    """A row; `run` measures once.

    `chunks` is the number of chunks in each streamed answer. The rounds fill `runs`. `problem` says
    why there are none, and `failed` is True if that was a failure.
    """

    name: str
    mode: Mode
    in_flight: int
    n: int
    run: Callable[[Server], Measured]
    chunks: int = 0
    runs: list[Measured] = field(default_factory=list)
    problem: str = ""
    failed: bool = False

    def median(self) -> Measured | None:
        """Return the median of every figure on its own, with times per request.

        The loss of answers is that of the worst run. None if nothing was measured.
        """
        if not self.runs:
            return None
        values = {f.name: [getattr(run, f.name) for run in self.runs] for f in fields(Measured)}
        middle = {name: _median(of) for name, of in values.items()}
        n = round(statistics.median(run.n for run in self.runs))
        cpu_s = n * statistics.median(run.cpu_s / run.n for run in self.runs)
        wall_s = n * statistics.median(run.wall_s / run.n for run in self.runs)
        ok = n - max(run.n - run.ok for run in self.runs)
        return Measured(**{**middle, "n": n, "ok": ok, "cpu_s": cpu_s, "wall_s": wall_s})

    @property
    def us_per_chunk(self) -> float | None:
        """CPU microseconds per chunk of a stream."""
        median = self.median()
        return 1000 * median.cpu_ms / self.chunks if median and self.chunks else None


def _median(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def slope_ms(small: Row | None, large: Row | None) -> float | None:
    """Return CPU milliseconds per additional request between two sizes of one row.

    The start-up cancels out. The result is the median of rounds, or None if noise was larger.
    """
    if small is None or large is None or not small.runs or not large.runs:
        return None
    pairs = zip(small.runs, large.runs, strict=False)
    slope = statistics.median(1000 * (b.cpu_s - a.cpu_s) / (b.n - a.n) for a, b in pairs)
    return slope if slope > 0 else None
