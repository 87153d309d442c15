"""Run many samples as a user does: `serve-eval run` in a process, with all defaults."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from processes import Finished, environment, run
from serving import Server

IN_FLIGHT = 512
LIMIT_S = 3600.0

_MAIN = "from serve_eval.cli import main; main()"
_WITHOUT_ALARM = (
    "import serve_eval.evaluation.ask_tasks as asking; asking.DegradationAlarm = lambda"
    " *given, **more: None; "
)


class RunFailed(Exception):
    """A run that did not score every sample right."""


def long_run(
    server: Server,
    count: int,
    folder: Path,
    *,
    in_flight: int = IN_FLIGHT,
    alarm: bool = True,
    started: Callable[[int], None] = lambda pid: None,
) -> Finished:
    """Ask `count` sums. Raises RunFailed unless all of them were scored right."""
    own = Path(__file__).parent
    command = ["-c", ("" if alarm else _WITHOUT_ALARM) + _MAIN]
    command += [
        "run",
        "--include-path",
        str(own / "include"),
        "--tasks",
        "sums",
        "--set",
        f"sums.num_samples={count}",
    ]
    command += [
        "--base-url",
        server.base_url,
        "--model",
        "m",
        "--no-reference",
        "--concurrency",
        str(in_flight),
    ]
    finished = run(
        [sys.executable, *command, "-o", str(folder)],
        limit_s=LIMIT_S,
        env=environment(folder),
        started=started,
    )
    if finished.code != 3:  # no reference applies
        raise RunFailed(f"exit code {finished.code}: {finished.last_words}")
    result = json.loads((folder / "report.json").read_bytes())["tasks"][0]["result"]
    if (result["scored"], result["value"]) != (count, 100.0):
        raise RunFailed(f"{result['scored']} of {count} scored, value {result['value']}")
    return finished


class Peaks:
    """Records a process's peak memory each time the server has received a number of requests."""

    def __init__(self, server: Server, at: tuple[int, ...]) -> None:
        self._server, self._left = server, list(at)
        self.peaks: dict[int, float] = {}
        self._over = threading.Event()

    def watch(self, pid: int) -> None:
        """Start to watch a process."""
        self._thread = threading.Thread(target=self._look, args=(pid,))
        self._thread.start()

    def _look(self, pid: int) -> None:
        while self._left and not self._over.wait(0.2):
            if self._server.seen().requests >= self._left[0]:
                try:
                    self.peaks[self._left.pop(0)] = peak_mb(pid)
                except OSError:
                    return

    def end(self) -> None:
        """Stop after the end of the process."""
        self._over.set()
        self._thread.join()


def peak_mb(pid: int) -> float:
    """Return the peak memory of a process so far, in MiB.

    Raises OSError where the system does not report it (no Linux).
    """
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024
