"""Run the commands of a run with the code of one checkout, and measure two in turn.

Taking turns spreads other load of the machine over both.
"""

from __future__ import annotations

import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Step:
    """A command.

    `shown`: its standard output is compared too. `otherwise` is tried if the tool does not know the
    command.
    """

    arguments: Sequence[str]
    shown: bool = False
    otherwise: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Run:
    """Successive commands in a folder of data, and the folders and files with their results.

    `ordered`: requests follow each other, so the order of the records is compared. `needs` is a
    package; without it the run is left out. `last` always runs, even after a failure. `{held}` in a
    step is the base URL that an earlier step printed.
    """

    name: str
    prepare: Callable[[Path], None]
    steps: Sequence[Step]
    folders: Sequence[str]
    ordered: bool = False
    files: Sequence[str] = ()
    needs: str = ""
    last: Step | None = None


def run(name, *more, out=None):
    """Evaluate a plan in a folder of its name, without a reference unless there are some."""
    flags = (
        "--set",
        "limits.order_seed=7",
        *(("--no-reference",) if "--references-dir" not in more else ()),
        *more,
    )
    return Step(("run", name, *flags, "-o", out or name.removesuffix(".yaml")))


def shown(*arguments, otherwise=()):
    """Compare the output of a command, too."""
    return Step(arguments, shown=True, otherwise=otherwise)


def simulated(**options):
    """Return a launcher."""
    return {"name": "simulated", "seed": 3, **options}


def common(concurrency, **limits):
    """Return the fields of every plan."""
    return {"model": "m", "dataset_root": "data", "limits": {"concurrency": concurrency, **limits}}


OURS = ("SERVE_EVAL_", "OPENAI_", "LLM_MODELS", "TRTLLM", "INTEG", "HF_", "COV_", "PYTHON")
"""Prefixes of the variables that would change the behaviour of a command."""
LIMIT_S = 300.0
_WHERE = "import launchers, serve_eval; print(serve_eval.__file__); print(launchers.__file__)"


@dataclass(frozen=True, slots=True)
class Ended:
    """A command that has ended.

    It has an exit code, both streams, CPU seconds of it and its children, and wall seconds.
    """

    code: int
    out: str
    err: str
    cpu_s: float = 0.0
    wall_s: float = 0.0
    peak_mb: float = 0.0

    @property
    def last_words(self):
        """The last line on standard error, for a message."""
        return (self.err.strip().splitlines() or [f"exit code {self.code}"])[-1][:200]


@dataclass(frozen=True, slots=True)
class Checkout:
    """A checkout, and the folder in which its commands run.

    Compiled modules go to `scratch`, never into the checkout, so that a start costs as much as it
    costs a user.
    """

    root: Path
    cwd: Path
    scratch: Path
    more: Mapping[str, str] = field(default_factory=dict)

    def environment(self):
        """Return the variables of every command."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        ours = {
            "PYTHONPATH": str(self.root),
            "PYTHONPYCACHEPREFIX": str(self.scratch / "compiled"),
            "XDG_CACHE_HOME": str(self.scratch / "cache"),
            "XDG_STATE_HOME": str(self.scratch / "state"),
            "SERVE_EVAL_LOCK_DIR": str(self.scratch),
            "HF_HUB_OFFLINE": "1",
            "HF_HOME": str(self.scratch / "huggingface"),
            "COLUMNS": "200",
            "NO_COLOR": "1",
            "TZ": "UTC",
        }
        return {**kept, **ours, **self.more}

    def check(self):
        """Raise SystemExit unless the interpreter imports the code of this checkout."""
        found = self.python("-c", _WHERE).out.split()
        if len(found) != 2 or not all(
            Path(file).resolve().is_relative_to(self.root) for file in found
        ):
            raise SystemExit(
                f"{self.root} is not what this interpreter imports: {' '.join(found) or 'nothing'}"
            )

    def serve_eval(self, *arguments, limit_s=LIMIT_S):
        """Run one command to its end."""
        return self.python("-m", "serve_eval", *arguments, limit_s=limit_s)

    def python(
        self,
        *arguments,
        limit_s=LIMIT_S,
        started=lambda pid: None,
    ):
        """Run this interpreter with the code of the checkout; `started` receives the process id."""
        out, err = self.scratch / f"{self.cwd.name}.out", self.scratch / f"{self.cwd.name}.err"
        with out.open("wb") as said, err.open("wb") as complained:
            began = time.perf_counter()
            process = subprocess.Popen(
                [sys.executable, *arguments],
                cwd=self.cwd,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=complained,
            )
            usage = _wait(process, limit_s, started)
            wall_s = time.perf_counter() - began
        return Ended(
            code=process.returncode,
            out=out.read_text("utf-8", "replace"),
            err=err.read_text("utf-8", "replace"),
            cpu_s=usage.ru_utime + usage.ru_stime,
            wall_s=wall_s,
            peak_mb=usage.ru_maxrss / 1024,
        )

    def interrupt(self, arguments, when, *, limit_s=LIMIT_S):
        """Run one command, and send SIGINT to its process as soon as `when` holds."""

        def watch(pid):
            deadline = time.monotonic() + limit_s
            while not when():
                if time.monotonic() > deadline:
                    raise SystemExit(
                        f"nothing to interrupt after {limit_s:.0f} s: {' '.join(arguments)}"
                    )
                time.sleep(0.02)
            os.kill(pid, signal.SIGINT)

        return self.python("-m", "serve_eval", *arguments, limit_s=limit_s, started=watch)


def _wait(process, limit_s, started):
    """Wait for the end of a process, and kill it after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    try:
        started(process.pid)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                return usage
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"still running after {limit_s:.0f} s: {' '.join(map(str, process.args))}"
                )
            time.sleep(0.005)
    except BaseException:
        process.kill()
        process.wait()
        raise


FEW, MANY, SHORT = 200, 10_200, 20
IN_FLIGHT = 128
MEASURED_LIMIT_S = 3600.0
SERVER = "bench/server.py"
"""The server of the first checkout serves both: it answers immediately and costs almost nothing."""
INCLUDE = "bench/include"
NO_REFERENCE = 3


def print_speed(before, after, *, rounds, samples):
    """Print one table: medians of both, and their ratio."""
    with tempfile.TemporaryDirectory(prefix="before-after-") as name, serve(before) as url:
        sides = [
            _side(root, Path(name) / side, url)
            for side, root in (("before", before), ("after", after))
        ]
        figures = [{}, {}]
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


def _round(side):
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


def _help(tool, *arguments):
    ended = tool.serve_eval(*arguments)
    if ended.code:
        raise SystemExit(f"{tool.root}: {' '.join(arguments)}: {ended.last_words}")
    return ended


class _Side:
    """A checkout, the server that it asks, and the number of its runs so far."""

    def __init__(self, tool, url):
        self.tool, self.url, self.runs = tool, url, 0


def _side(root, scratch, url):
    scratch.mkdir()
    tool = Checkout(root=root, cwd=scratch, scratch=scratch)
    tool.check()
    return _Side(tool, url)


def _run(side, name, count, *, in_flight):
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
    ended = side.tool.serve_eval("run", *flags, "-o", folder, limit_s=MEASURED_LIMIT_S)
    if ended.code != NO_REFERENCE:
        raise SystemExit(f"{side.tool.root}: exit code {ended.code}: {ended.last_words}")
    result = json.loads((side.tool.cwd / folder / "report.json").read_bytes())["tasks"][0]["result"]
    if (result["scored"], result["value"]) != (count, 100.0):
        raise SystemExit(
            f"{side.tool.root}: {result['scored']} of {count} scored, value {result['value']}"
        )
    return ended


@contextmanager
def serve(root):
    """Run the server of the benchmarks, which ends with its standard input."""
    command = [sys.executable, str(root / SERVER)]
    environ = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ
    ) as process:
        port = process.stdout.readline().strip()
        if not port:
            raise SystemExit(f"{command[1]} did not start")
        yield f"http://127.0.0.1:{port}/v1"
