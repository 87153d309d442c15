"""The benchmark's server as used by the harness."""

from __future__ import annotations

import http.client
import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self


@dataclass(frozen=True, slots=True)
class Mode:
    """The delays of the server: latency of an answer, and pause between two chunks of a stream.

    `tokens`, `spread`, `step_ms` and `stamped` are the server's options of these names.
    """

    latency_ms: float = 0
    chunk_ms: int = 0
    tokens: int = 0
    spread: bool = False
    step_ms: float = 0
    stamped: bool = False

    def arguments(self) -> list[str]:
        """Return the options of the server."""
        told = ["--latency-ms", str(self.latency_ms), "--chunk-ms", str(self.chunk_ms)]
        told += ["--tokens", str(self.tokens), "--step-ms", str(self.step_ms)]
        return told + ["--spread"] * self.spread + ["--stamped"] * self.stamped


@dataclass(frozen=True, slots=True)
class Seen:
    """The server's counts.

    `cpu_s_at_first` is the CPU time of the watched process at its first request.
    """

    requests: int
    max_in_progress: int
    connections: int
    cpu_s_at_first: float | None
    bytes_in: int
    bytes_out: int


class Server:
    """A running bench/server.py, as a context manager."""

    def __init__(self, mode: Mode) -> None:
        self._mode = mode

    def __enter__(self) -> Self:
        script = str(Path(__file__).with_name("server.py"))
        self._process = subprocess.Popen(
            [sys.executable, script, *self._mode.arguments()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout is not None
        told = self._process.stdout.readline()
        if not told:
            raise SystemExit("the server of the benchmark did not start; see above")
        self._port = int(told)
        self.base_url = f"http://127.0.0.1:{self._port}/v1"
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def reset(self) -> None:
        """Set the counts to zero."""
        self._call("POST", "/reset")

    def watch(self, pid: int) -> None:
        """Record the CPU time of a process when the next request for a completion arrives."""
        self._call("POST", "/watch", str(pid))

    def seen(self) -> Seen:
        """Return the counts since the last reset, without the connection that asks for them."""
        told = json.loads(self._call("GET", "/stats"))
        return Seen(**{**told, "connections": told["connections"] - 1})

    def _call(self, method: str, path: str, body: str = "") -> bytes:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=30)
        try:
            connection.request(method, path, body)
            return connection.getresponse().read()
        finally:
            connection.close()
