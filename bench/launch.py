"""Measure the time from the command to the first evaluated request, by stage.

Run `python bench/launch.py [ROUNDS]`. The two context and two generation servers are the stand-in
and load nothing. The time that they need to start, and that of --help, is theirs; the rest is ours.
Needs the dev extra.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path

from machine import load

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 7
STEPS = (
    ("the command is read, and the data", True),
    ("--help is asked for the options", False),
    ("all servers are started", True),
    ("until all listen", False),
    ("that is noticed, the first completion", True),
    ("a short request, then the first evaluated", True),
)
"""Stages, and True for those whose time is ours."""


def one_launch(folder: Path, data: Path) -> list[float]:
    """Return the seconds of each step."""
    times = folder / "times"
    plan = folder / "plan.yaml"
    launcher = {
        "name": "trtllm_disaggregated",
        "context_servers": {"num_instances": 2},
        "generation_servers": {"num_instances": 2},
    }
    plan.write_text(
        json.dumps(
            {"model": "m/m", "tasks": ["gsm8k"], "dataset_root": str(data), "launcher": launcher}
        )
    )
    standin = {
        "STANDIN_PYTHON": sys.executable,
        "STANDIN_TIMES": str(times),
        "STANDIN_POLL_S": "0.05",
    }
    standin["SERVE_EVAL_PASS_ENV"] = "STANDIN_*"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    path = f"{ROOT / 'tests/standin'}{os.pathsep}{os.environ['PATH']}"
    command = [
        sys.executable,
        "-m",
        "serve_eval",
        "run",
        str(plan),
        "--limit",
        "20",
        "--no-reference",
    ]
    marks = [time.time()]
    with subprocess.Popen(
        [*command, "-o", str(folder / "out")],
        env={
            **env,
            **standin,
            "PATH": path,
            "SERVE_EVAL_LOCK_DIR": str(folder),
            "XDG_CACHE_HOME": str(folder),
        },
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        completed = next(
            (time.time() for line in process.stderr if "the first completion" in line), None
        )
        process.stderr.read()
    events = [
        (float(at), what)
        for at, what in (line.split(maxsplit=1) for line in times.read_text().splitlines())
    ]
    helps = [at for at, what in events if what.startswith("began") and what.endswith("--help")]
    began = [at for at, what in events if what.startswith("began") and not what.endswith("--help")]
    listens = [at for at, what in events if what.startswith("listens")]
    records = [
        json.loads(line) for line in (folder / "out/samples/gsm8k.jsonl").read_text().splitlines()
    ]
    first = min(record["response"]["attempts"][0]["start_s"] for record in records)
    assert completed is not None
    marks += [min(helps), min(began), max(began), max(listens), completed, first]
    return [after - before for before, after in pairwise(marks)]


def main() -> None:
    from serve_eval.datasets.generated import write_gsm8k

    count = int(sys.argv[1]) if len(sys.argv) > 1 else ROUNDS
    with tempfile.TemporaryDirectory() as name:
        write_gsm8k(Path(name) / "data/gsm8k")
        rounds = []
        for number in range(count):
            (folder := Path(name) / str(number)).mkdir()
            rounds.append(one_launch(folder, Path(name) / "data"))
    print(
        f"seconds to the first evaluated request, 2 + 2 servers, median and least of {count}"
        f" launches, load {load()}"
    )
    for (what, ours), values in zip(STEPS, zip(*rounds, strict=True), strict=True):
        print(
            f"  {'ours' if ours else 'theirs':6} {what:44} {statistics.median(values):.3f}"
            f" {min(values):.3f}"
        )
    own = [sum(s for s, (_, ours) in zip(steps, STEPS, strict=True) if ours) for steps in rounds]
    print(f"  {'ours':6} {'in all':44} {statistics.median(own):.3f} {min(own):.3f}")


if __name__ == "__main__":
    main()
