"""GPU hours of a search that starts processes, by the launcher of trtllm-serve and its stand-in."""

from __future__ import annotations

import asyncio
import io
import time
from pathlib import Path

from rich.console import Console

from serve_eval.plugins.scope import scope
from serve_eval.report.document import print_document
from serve_eval.schema import Bisection
from serve_eval.workflows.bisect.bisect import bisect
from serve_eval.workflows.bisect.document import make_document
from serve_eval.workflows.bisect.search import BisectRules
from tests.workflows.bisect.on_standin import BROKEN, build, two_gpus


def test_gpu_hours_of_processes_are_counted_and_end_a_search(tmp_path: Path) -> None:
    times, said = tmp_path / "times", dict[str, float]()
    found = build(
        tmp_path,
        [next(iter(BROKEN))],
        samples=40,
        damage=1.0,
        accuracy=1.0,
        order_seed=1,
        tp=2,
        more_env={"STANDIN_LOAD_S": "1", "STANDIN_TIMES": str(times)},
    )

    def note(line: str) -> None:
        said[line.partition(" after ")[0]] = time.time()

    def search(hours: float) -> Bisection:
        rules = BisectRules(margin=20.0, budget_gpu_hours=hours)
        with scope(), two_gpus(tmp_path):
            return asyncio.run(bisect(found, rules, tmp_path / "out", notify=note))

    part = search(1e-9)
    assert (part.ending, part.starts, len(part.steps)) == ("budget", 1, 1)
    assert part.gpu_hours is not None
    state = search(part.gpu_hours + 1e-9)
    assert (state.ending, state.exit_code, state.starts) == ("budget", 3, 2)
    # The bad configuration has two GPUs: two seconds in each second from its start.
    starts = [line.split()[0] for line in times.read_text().splitlines() if " began " in line]
    [ready] = [at for line, at in said.items() if line.endswith(": ready")]
    used = state.steps[1].gpu_s
    assert used is not None
    asked_s = said["step 1: worse"] - said["step 1: bad"]
    assert 2 * (ready - float(starts[-1])) < used < 2 * asked_s
    # The sum has the whole first search, and the time in which the second server ends.
    assert state.gpu_hours is not None
    assert state.gpu_hours > part.gpu_hours + used / 3600
    buffer = io.StringIO()
    document = make_document(state, found, tmp_path / "out")
    print_document(document, Console(file=buffer, width=80))
    spent = f"2 server starts, {state.requests} answers, {state.gpu_hours:.2f} GPU hours"
    assert spent in buffer.getvalue()
