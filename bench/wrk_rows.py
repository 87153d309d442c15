"""The row of wrk, a load generator in C that reads no answer: the cost of the system alone.

It is left out if wrk is not installed.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import msgspec
from client_rows import AT_ONCE
from processes import run
from rows import Measured, NotInstalled, NotMeasured, Row, Size
from serving import Server
from workload import fields

IN_FLIGHT = 64


def wrk_rows(size: Size, scratch: Path) -> list[Row]:
    """Return one row without latency: wrk sends as fast as the server answers."""
    seconds = max(1, round(4 * size.scale))
    body = scratch / "wrk_body.json"
    body.write_bytes(msgspec.json.encode(fields(0)))
    script = str(Path(__file__).with_name("wrk.lua"))

    def measure(server: Server) -> Measured:
        wrk = shutil.which("wrk")
        if wrk is None:
            raise NotInstalled("wrk")
        url = f"{server.base_url}/completions"
        command = [wrk, "-t1", f"-c{size.in_flight(IN_FLIGHT)}", f"-d{seconds}", "-s", script, url]
        finished = run(command, limit_s=60, env={**os.environ, "BENCH_BODY": str(body)})
        told = re.search(r"(\d+) requests in", finished.out)
        if finished.code or told is None:
            raise NotMeasured(finished.last_words)
        n = int(told.group(1))
        wrong = sum(
            map(
                int,
                re.findall(
                    r"(?:Non-2xx or 3xx responses:|connect|read|write|timeout) (\d+)", finished.out
                ),
            )
        )
        return Measured(
            n=n,
            ok=n - wrong,
            cpu_s=finished.cpu_s,
            wall_s=finished.wall_s,
            received=server.seen().requests,
        )

    return [Row(name="wrk, client alone", mode=AT_ONCE, in_flight=IN_FLIGHT, n=0, run=measure)]
