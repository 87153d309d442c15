"""Measure what one `serve-eval run` spends on each answer, by kinds of requests.

The process is the tool as users run it, with journal, scoring, alarm and report. A task notes the
CPU time of the process at each answer (bench/include/tasks/answers_of_kind.py). The figures are of
the answers between the first `in_flight` ones and the last: without start, end and connections.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray
from processes import environment, run
from serving import Mode, Server

_MAIN = "from serve_eval.cli import main; main()"
LIMIT_S = 600.0
_CLOCK = 10**12
"""Microseconds after which the server's stamps begin again."""


class KindFailed(Exception):
    """A run that did not score every sample."""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of requests: its name for people and for the task, its server, its assumptions.

    `tokens` is the length of an answer. `new_tokens` is the part of the prompt that a server with a
    prefix cache computes. `n` answers are measured at once.
    """

    name: str
    task: str
    tokens: int
    new_tokens: int
    n: int
    streamed: bool = False

    @property
    def mode(self) -> Mode:
        """The server that answers immediately, or sends the tokens of a stream 5 ms apart."""
        whole = self.tokens if self.tokens > 1 else 0
        return Mode(tokens=whole, chunk_ms=5 if self.streamed else 0)

    @property
    def events(self) -> int:
        """The number of times that an answer calls the client: once, or once per token."""
        return self.tokens if self.streamed else 1


KINDS = (
    Kind("short", "short", 1, 100, 10_000),
    Kind("medium", "medium", 150, 100, 10_000),
    Kind("long", "long", 2000, 100, 8_000),
    Kind("long, streamed", "long", 2000, 100, 256, streamed=True),
    Kind("log-probs", "logprobs", 1, 1000, 1_500),
)
MEDIUM = KINDS[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """The flow of answers in one run, per answer unless named otherwise.

    `times_s` are the CPU seconds from one answer to the next. `sent_s` is when the server sent an
    answer, if it stamps them, and `delays_s` the time from there to the score. `kept_waiting` is
    the share of the time in which the process was ready and other processes had its core.
    """

    cpu_s: float
    user_s: float
    system_s: float
    wall_s: float
    times_s: NDArray[np.float64]
    sent_s: NDArray[np.float64]
    delays_s: NDArray[np.float64]
    kept_waiting: float
    around_s: float
    sent_bytes: float
    received_bytes: float
    disk_bytes: float
    growth_bytes: float
    peak_mb: float
    at_server: int


def measure(
    kind: Kind, *, in_flight: int, n: int, first: int | None = None, mode: Mode | None = None
) -> Flow:
    """Run the tool once over `n` samples of a kind. Raises KindFailed unless all were scored.

    The figures are of the answers after the `first` ones (None: as many as are in flight).
    """
    first = min(in_flight, n // 2) if first is None else first
    with Server(mode or kind.mode) as server, TemporaryDirectory(prefix="serve-eval-bench-") as at:
        folder, record = Path(at) / "run", Path(at) / "record.json"
        command = ["run", "--include-path", str(Path(__file__).parent / "include")]
        command += ["--tasks", "answers_of_kind", "--set", f"answers_of_kind.num_samples={n}"]
        command += ["--set", f"answers_of_kind.kind={kind.task}", "--base-url", server.base_url]
        command += ["--model", "m", "--no-reference", "--concurrency", str(in_flight)]
        command += ["--set", "limits.stream=true"] if kind.streamed else []
        done = run(
            [sys.executable, "-c", _MAIN, *command, "-o", str(folder)],
            limit_s=LIMIT_S,
            env={**environment(Path(at)), "BENCH_RECORD": str(record), "BENCH_FIRST": str(first)},
        )
        if done.code != 3:  # no reference applies
            raise KindFailed(f"{kind.name}: exit code {done.code}: {done.last_words}")
        result = json.loads((folder / "report.json").read_bytes())["tasks"][0]["result"]
        if result["scored"] != n:
            raise KindFailed(f"{kind.name}: {result['scored']} of {n} scored")
        seen = server.seen()
        disk = sum(file.stat().st_size for file in (folder / "samples").rglob("*"))
        told = json.loads(record.read_bytes())
    flow = _flow(told, n, first)
    return Flow(
        **flow,
        around_s=done.cpu_s - n * flow["cpu_s"],
        sent_bytes=seen.bytes_in / n,
        received_bytes=seen.bytes_out / n,
        disk_bytes=disk / n,
        peak_mb=done.peak_rss_mb,
        at_server=seen.max_in_progress,
    )


def _flow(told: dict, n: int, first: int) -> dict:
    """Return the figures of the answers from number `first` to the last."""
    cpu_s = np.array(told["cpu_ns"]) / 1e9
    at_us, sent_us = np.array(told["at_us"]), np.array(told["sent_us"])
    begin, end = told["marks"]
    count, wall_s = n - first, float(at_us[-1] - at_us[first - 1]) / 1e6
    stamped = bool(sent_us.all())
    return {
        "cpu_s": float(cpu_s[-1] - cpu_s[first - 1]) / count,
        "user_s": (end[1] - begin[1]) / count,
        "system_s": (end[2] - begin[2]) / count,
        "wall_s": wall_s / count,
        "times_s": np.diff(cpu_s[first - 1 :]),
        "sent_s": sent_us[first:] / 1e6,
        "delays_s": (at_us[first:] - sent_us[first:]) % _CLOCK / 1e6 * stamped,
        "kept_waiting": (end[4] - begin[4]) / max(1e-9, end[5] - begin[5]),
        "growth_bytes": (end[3] - begin[3]) * 2**20 / count,
    }
