"""Measure what the gate compares: whole runs, start-up and scorers, and two yardsticks.

Every subject is a process of its own on the client's core. A figure is the least of its rounds:
other work on the machine can only add to it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from processes import Finished, environment, run
from serving import Mode, Server

HERE = Path(__file__).parent
IN_FLIGHT, IN_FLIGHT_AT_ONCE = 512, 64
GSM8K = (512, 4_000)
"""Samples of a run of GSM8K, whose answers come after 200 ms; a page shows all of them."""
SUMS = (6_000, 12_000)
"""Generated samples, answered at once; both sizes are above what a page shows in full."""
COUNTED = (400, 1_200)
"""Samples of the runs whose calls, and openings of files, are counted."""
FILES = ("samples", "scores", "prompts", "environment.json")
RECORDS = 200_000
TRAIN = 2_000
LIMIT_S = 120.0
_WRITE = "import sys, pathlib; from serve_eval.datasets.generated import write_gsm8k as write; "
_WRITE += "write(pathlib.Path(sys.argv[1]), train=int(sys.argv[2]), test=int(sys.argv[3]))"

Figures = dict[str, float]


class NotMeasured(Exception):
    """A subject ended in an error: the gate has no figure and fails."""


@dataclass
class Bench:
    """The servers, the scratch folder, and the least of each figure so far."""

    after_200_ms: Server
    at_once: Server
    scratch: Path
    least: Figures = field(default_factory=dict)

    def measure(self, subject: str) -> None:
        """Run one subject once."""
        for name, value in SUBJECTS[subject](self).items():
            self.least[name] = min(value, self.least.get(name, value))


def _python(*arguments: str | Path, scratch: Path, code: int = 0) -> Finished:
    """Run Python to its end. Raises NotMeasured unless it ends with `code`."""
    return _checked([sys.executable, *map(str, arguments)], scratch, code)


def _checked(
    command: list[str],
    scratch: Path,
    code: int = 0,
    started: Callable[[int], None] = lambda pid: None,
) -> Finished:
    done = run(command, limit_s=LIMIT_S, env=environment(scratch), started=started)
    if done.code != code:
        raise NotMeasured(f"{' '.join(command[1:4])} ended with {done.code}: {done.last_words}")
    return done


def _yardstick(bench: Bench) -> Figures:
    done = _python(HERE / "yardstick.py", "loop", scratch=bench.scratch)
    return {"yardstick_s": done.cpu_s}


def _records(bench: Bench) -> Figures:
    few, many = (
        _python(HERE / "yardstick.py", "records", str(n), scratch=bench.scratch)
        for n in (0, RECORDS)
    )
    return {"yardstick_mb": many.peak_rss_mb, "empty_mb": few.peak_rss_mb}


def _bare(bench: Bench) -> Figures:
    command = [HERE / "one_client.py", "aiohttp", "--base-url", bench.at_once.base_url]
    command += ["--n", "3000", "--concurrency", str(IN_FLIGHT_AT_ONCE)]
    done = _python(*command, scratch=bench.scratch)
    told = json.loads(done.out)
    if told["ok"] != told["n"]:
        raise NotMeasured(f"the bare client: {told}")
    return {"bare_ms": 1000 * told["cpu_s"] / told["n"], "bare_mb": told["peak_rss_mb"]}


def _help(bench: Bench) -> Figures:
    done = [_python("-m", "serve_eval", "--help", scratch=bench.scratch) for _ in range(3)]
    return {"help_s": min(one.cpu_s for one in done)}


def _scores(bench: Bench) -> Figures:
    done = _python(HERE / "gate_scores.py", scratch=bench.scratch)
    return {f"score_us {name}": value for name, value in json.loads(done.out).items()}


def _run(bench: Bench, server: Server, task: list[str], in_flight: int, what: str) -> Figures:
    """Run the tool with all defaults, and return the figures of the whole process."""
    folder = Path(tempfile.mkdtemp(dir=bench.scratch))
    notes = folder / "notes.json"
    command = [sys.executable, str(HERE / "gate_run.py"), what, str(notes), "run", *task]
    command += ["--base-url", server.base_url, "--model", "m", "--no-reference"]
    command += ["--concurrency", str(in_flight), "-o", str(folder / "run")]
    server.reset()
    done = _checked(command, bench.scratch, 3, server.watch)  # 3: no reference applies
    if not notes.exists():
        raise NotMeasured(
            "serve_eval.cli._ending.save_document_page is gone: adapt bench/gate_run.py"
        )
    told = json.loads(notes.read_bytes())
    found = {
        "cpu_s": done.cpu_s,
        "sleeps": float(done.sleeps),
        "peak_mb": done.peak_rss_mb,
        "first_s": server.seen().cpu_s_at_first or 0.0,
        "page_bytes": float((folder / "run/report.html").stat().st_size),
    }
    shutil.rmtree(folder)
    return found | told


def _gsm8k(n: int) -> Callable[[Bench], Figures]:
    def measure(bench: Bench) -> Figures:
        data = bench.scratch / f"data_{n}"
        if not data.exists():
            written = [sys.executable, "-c", _WRITE, str(data / "gsm8k"), str(TRAIN), str(n)]
            subprocess.run(written, check=True)
        task = ["--tasks", "gsm8k", "--dataset-root", str(data), "--set", f"gsm8k.num_samples={n}"]
        found = _run(bench, bench.after_200_ms, task, IN_FLIGHT, "page")
        kept = {f"gsm8k_{n}_cpu_s": found["cpu_s"]}
        return kept | ({"first_s": found["first_s"]} if n == GSM8K[0] else {})

    return measure


def _sums(n: int, what: str = "page") -> Callable[[Bench], Figures]:
    def measure(bench: Bench) -> Figures:
        task = ["--include-path", str(HERE / "include"), "--tasks", "sums"]
        task += ["--set", f"sums.num_samples={n}"]
        found = _run(bench, bench.at_once, task, IN_FLIGHT_AT_ONCE, what)
        if what == "counted":
            opened = {f"opened {name}": found.get(name, 0.0) for name in FILES}
            return opened | {f"sums_{n}_calls": found["calls"]}
        names = ("cpu_s", "sleeps", "peak_mb", "page_cpu_s", "page_bytes")
        return {f"sums_{n}_{name}": found[name] for name in names}

    return measure


SUBJECTS: Mapping[str, Callable[[Bench], Figures]] = {
    "yardstick": _yardstick,
    "bare": _bare,
    "records": _records,
    "counted small": _sums(COUNTED[0], "counted"),
    "counted large": _sums(COUNTED[1], "counted"),
    "help": _help,
    "scores": _scores,
    "gsm8k small": _gsm8k(GSM8K[0]),
    "gsm8k large": _gsm8k(GSM8K[1]),
    "sums small": _sums(SUMS[0]),
    "sums large": _sums(SUMS[1]),
}
ONCE = ("records", "counted small", "counted large")
"""Subjects whose figures are alike in each round."""


def servers() -> tuple[Server, Server]:
    """Return the server that answers after 200 ms, and the one that answers at once."""
    return Server(Mode(latency_ms=200)), Server(Mode())
