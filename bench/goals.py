"""Goals of the client, and whether this run reached them; each compares figures of one table.

They are those of a run with all defaults, a key and the pictures of the page. The figures in ms and
s were set on a faster machine, of which no yardstick is known: on another one, the ratios count.
`in_loops` says what a time is in turns of the yardstick, so that machines can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from client_rows import AFTER_200_MS, AT_ONCE, SPACED_10_MS
from lm_eval_rows import ALONE, ENGINE, ON_OUR_CLIENT
from rows import Measured, Row, slope_ms
from serving import Mode
from startup import median_seconds

_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
HELP = {"serve-eval --help": ["-m", "serve_eval", "--help"]}


@dataclass(frozen=True, slots=True, kw_only=True)
class Goal:
    """A `value` and its `limit`; with a `peer`, the limit applies to the ratio of the two."""

    what: str
    value: float | None
    limit: float
    unit: str
    peer: tuple[str, float | None] | None = None

    @property
    def ratio(self) -> float | None:
        """The figure that is compared with the limit; None if something was not measured."""
        if self.peer is None or self.value is None:
            return self.value
        return self.value / self.peer[1] if self.peer[1] else None

    def in_loops(self, yardstick_s: float) -> str:
        """Return a time as a multiple of the yardstick loop on this machine; empty for others."""
        if self.value is None or self.peer is not None or self.unit not in _SECONDS:
            return ""
        return f" = {self.value * _SECONDS[self.unit] / yardstick_s:.3g} loops"

    def __str__(self) -> str:
        ratio = self.ratio
        said = "not measured" if ratio is None else ("reached" if ratio <= self.limit else "MISSED")
        value = "-" if self.value is None else f"{_number(self.value)} {self.unit}"
        if self.peer is None:
            return f"  {said:13} {self.what}: {value} (at most {_number(self.limit)})"
        name, other = self.peer
        other_value = "-" if other is None else f"{_number(other)} {self.unit}"
        share = "" if ratio is None else f" = {_fraction(ratio)}"
        return (
            f"  {said:13} {self.what}: {value} / {name} {other_value}{share} (at most"
            f" {_fraction(self.limit)})"
        )


def _number(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _fraction(ratio: float) -> str:
    return f"1/{1 / ratio:.3g}" if 0 < ratio < 1 else f"{ratio:.2f}"


def goals(rows: Sequence[Row], rounds: int) -> Iterator[Goal]:
    """Yield every goal, measured or not; `rounds` are those of the start-up."""
    names = ("serve-eval run", "lm-eval local", "AsyncOpenAI script")
    tool, lm_eval, script = ([row for row in rows if row.name.startswith(name)] for name in names)
    yield from _tool_goals(tool, lm_eval, script)
    yield from _lm_eval_goals(rows)
    ours = _of(rows, "ours, client alone", AT_ONCE, 64)
    what = "CPU per request, client alone, 64 in flight"
    for name, limit in (("wrk", 10.0), ("aiohttp", 1.5)):
        peer = _of(rows, f"{name}, client alone", AT_ONCE, 64)
        yield Goal(
            what=what, value=_cpu_ms(ours), limit=limit, unit="ms", peer=(name, _cpu_ms(peer))
        )
    yield from _many_in_flight(_median(_row(rows, "ours, client alone", AFTER_200_MS, 4096)))
    streamed = _row(rows, "ours, streamed", SPACED_10_MS, 128)
    yield Goal(
        what="CPU per chunk of a stream, 10 ms apart, 128 streams",
        value=streamed.us_per_chunk if streamed and _all_right(streamed.median()) else None,
        limit=8,
        unit="us",
    )
    yield Goal(
        what="serve-eval --help",
        value=median_seconds(HELP, rounds)["serve-eval --help"],
        limit=0.1,
        unit="s",
    )


def _tool_goals(tool: list[Row], lm_eval: list[Row], script: list[Row]) -> Iterator[Goal]:
    slope, its_slope = slope_ms(*_sizes(tool)), slope_ms(*_sizes(lm_eval))
    what = "CPU per further sample, whole tool, 512 in flight"
    yield Goal(what=what, value=slope, limit=0.14, unit="ms")
    yield Goal(what=what, value=slope, limit=1 / 8, unit="ms", peer=("lm-eval", its_slope))
    yield Goal(
        what=what,
        value=slope,
        limit=1 / 5.8,
        unit="ms",
        peer=("AsyncOpenAI script", slope_ms(*_sizes(script))),
    )
    first, its_first = (
        m and m.cpu_s_at_first for m in (_median(_sizes(of)[0]) for of in (tool, lm_eval))
    )
    what = "CPU until the first request, smallest data set"
    yield Goal(what=what, value=first, limit=0.45, unit="s")
    yield Goal(what=what, value=first, limit=1 / 10, unit="s", peer=("lm-eval", its_first))
    usual = _median(_row(tool, "", AFTER_200_MS, 128))
    what = "wall time of the whole run, 128 in flight"
    yield Goal(what=what, value=usual and usual.wall_s, limit=2.5, unit="s")


def _lm_eval_goals(rows: Sequence[Row]) -> Iterator[Goal]:
    """Yield goals for one task of lm-eval with 128 requests in flight.

    Our client must not be slower than lm-eval's own client or use more CPU.
    """
    pairs = [("lm-eval local", name, "whole") for name in (ENGINE, ON_OUR_CLIENT)]
    pairs.append((ALONE["local-completions"], ALONE["serve-eval"], "requests alone"))
    for other, name, part in pairs:
        theirs, ours = (_of(rows, one, AFTER_200_MS, 128) for one in (other, name))
        for what, unit, of in (
            ("wall time", "s", lambda m: m.wall_s),
            ("CPU", "s", lambda m: m.cpu_s),
        ):
            yield Goal(
                what=f"{what} of a task of lm-eval, {part}: {name}",
                value=of(ours) if _all_right(ours) else None,
                limit=1.0,
                unit=unit,
                peer=("lm-eval's own", of(theirs) if _all_right(theirs) else None),
            )


def _many_in_flight(ours: Measured | None) -> Iterator[Goal]:
    """Yield goals for 4096 requests in flight: none missing at the server, lost, or sent twice."""
    what = "4096 in flight, client alone: "
    short = None if ours is None or ours.at_server is None else 4096 - ours.at_server
    twice = None if ours is None or ours.received is None else ours.received - ours.n
    yield Goal(what=what + "fewer than that at the server", value=short, limit=0, unit="requests")
    yield Goal(
        what=what + "without a right answer",
        value=ours and ours.n - ours.ok,
        limit=0,
        unit="requests",
    )
    yield Goal(what=what + "sent again", value=twice, limit=0, unit="requests")
    yield Goal(what=what + "peak memory", value=ours and ours.peak_rss_mb, limit=300, unit="MB")


def _sizes(rows: list[Row]) -> tuple[Row | None, Row | None]:
    """Return the smallest and the largest of the rows with 512 in flight."""
    found = sorted((row for row in rows if row.in_flight == 512), key=lambda row: row.n)
    return (found[0], found[-1]) if len(found) > 1 else (None, None)


def _row(rows: Sequence[Row], name: str, mode: Mode, in_flight: int) -> Row | None:
    return next(
        (r for r in rows if r.name.startswith(name) and (r.mode, r.in_flight) == (mode, in_flight)),
        None,
    )


def _of(rows: Sequence[Row], name: str, mode: Mode, in_flight: int) -> Measured | None:
    return _median(_row(rows, name, mode, in_flight))


def _median(row: Row | None) -> Measured | None:
    return row.median() if row else None


def _all_right(measured: Measured | None) -> bool:
    return measured is not None and measured.ok == measured.n


def _cpu_ms(measured: Measured | None) -> float | None:
    """Return the CPU per request of a run in which every answer was right."""
    return measured.cpu_ms if measured and _all_right(measured) else None
