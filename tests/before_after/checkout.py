"""Describe a run as commands, and run them with the code of one checkout."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


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


def run(name: str, *more: str, out: str | None = None) -> Step:
    """Evaluate a plan in a folder of its name, without a reference unless there are some."""
    flags = (
        "--set",
        "limits.order_seed=7",
        *(("--no-reference",) if "--references-dir" not in more else ()),
        *more,
    )
    return Step(("run", name, *flags, "-o", out or name.removesuffix(".yaml")))


def shown(*arguments: str, otherwise: Sequence[str] = ()) -> Step:
    """Compare the output of a command, too."""
    return Step(arguments, shown=True, otherwise=otherwise)


def simulated(**options: object) -> Mapping[str, object]:
    """Return a launcher."""
    return {"name": "simulated", "seed": 3, **options}


def common(concurrency: int, **limits: object) -> dict[str, Any]:
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
    def last_words(self) -> str:
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

    def environment(self) -> dict[str, str]:
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

    def check(self) -> None:
        """Raise SystemExit unless the interpreter imports the code of this checkout."""
        found = self.python("-c", _WHERE).out.split()
        if len(found) != 2 or not all(
            Path(file).resolve().is_relative_to(self.root) for file in found
        ):
            raise SystemExit(
                f"{self.root} is not what this interpreter imports: {' '.join(found) or 'nothing'}"
            )

    def serve_eval(self, *arguments: str, limit_s: float = LIMIT_S) -> Ended:
        """Run one command to its end."""
        return self.python("-m", "serve_eval", *arguments, limit_s=limit_s)

    def python(
        self,
        *arguments: str,
        limit_s: float = LIMIT_S,
        started: Callable[[int], None] = lambda pid: None,
    ) -> Ended:
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

    def interrupt(
        self, arguments: Sequence[str], when: Callable[[], bool], *, limit_s: float = LIMIT_S
    ) -> Ended:
        """Run one command, and send SIGINT to its process as soon as `when` holds."""

        def watch(pid: int) -> None:
            deadline = time.monotonic() + limit_s
            while not when():
                if time.monotonic() > deadline:
                    raise SystemExit(
                        f"nothing to interrupt after {limit_s:.0f} s: {' '.join(arguments)}"
                    )
                time.sleep(0.02)
            os.kill(pid, signal.SIGINT)

        return self.python("-m", "serve_eval", *arguments, limit_s=limit_s, started=watch)


def _wait(
    process: subprocess.Popen[bytes], limit_s: float, started: Callable[[int], None]
) -> resource.struct_rusage:
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
                )  # type: ignore[arg-type]
            time.sleep(0.005)
    except BaseException:
        process.kill()
        process.wait()
        raise
