"""Count how often each command accuses a sound model that thinks.

`python -m tests.thinking.trials [RUNS] [COMMAND]` makes RUNS runs of each (100), spread over the
flavours of the stand-in, and then some against a damaged one, which must be seen. A run is accused
if smoke has a row FAIL, if a round of a watch raises an alarm, if verify says anything but
IDENTICAL or that it cannot judge, if the probes of a run call an ability missing, if answers of a
thinking judge or of lm-eval's model are wrong, or if another command ends with 1.
"""

import asyncio
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from serve_eval.checks.row import CheckOutcome
from serve_eval.launchers._standin.model import MadeUpModel
from serve_eval.plan.resolve import resolve_address
from serve_eval.workflows.watch.alarming import Delivery
from serve_eval.workflows.watch.judging import WatchRules
from serve_eval.workflows.watch.story import WatchJob, watch
from tests.cli.command import serve_eval
from tests.stats.calibrate_siblings import interval
from tests.thinking import commands
from tests.thinking.commands import (
    BROKEN,
    FLAVOURS,
    NOT_COMPARABLE,
    UNJUDGED,
    flavour_in_thread,
    serve_flavour,
)
from tests.workflows.smoke.trying import smoke_at

THINKING = tuple(name for name in FLAVOURS if name != "never")
DAMAGED_RUNS = 8
TIMEOUT_S = 120.0
"""Seconds for a request: a busy machine must not look like a server that lost an answer."""
WORKERS = 4
"""Processes, which wait for most of their time."""


def smoke_once(name, damaged, number, **more):
    """Return the rows of a smoke test that say FAIL. `more` are faults of the server."""

    async def main():
        faults = {**BROKEN, "seed": number} if damaged else {}
        async with serve_flavour(name, **faults, **more) as url:
            done = await smoke_at(url, level="quick", timeout_s=TIMEOUT_S)
        return ", ".join(
            f"{row.name}: {row.told[:90]}" for row in done.rows if row.outcome == CheckOutcome.FAIL
        )

    return asyncio.run(main())


class WorseningModel(MadeUpModel):
    """Answers well until it is worn; then a share of its answers is wrong."""

    def __init__(self, seed):
        super().__init__(skilled=True, seed=seed)
        self.worn, self.asked = False, 0

    def answer(self, ids, *, wrong=False, **drawn):
        self.asked += 1
        bad = wrong or (self.worn and self.asked % 2 == 0)
        return super().answer(ids, wrong=bad, **drawn)


def watch_once(name, damaged, number):
    """Return the alarms of a watch: a baseline, and rounds after it, which may be damaged."""
    lines = []
    model = WorseningModel(number)

    async def main(folder):
        async with serve_flavour(name, model) as url:
            plan = resolve_address({"base_url": url}, {})
            code = 0
            for rounds, worn in ((6, False), (8, damaged)):
                model.worn = worn
                job = WatchJob(
                    plan=plan,
                    pool=None,
                    prompts=40,
                    rules=WatchRules(passes=2, tolerance=0.01, max_error_rate=0.05),
                    tokens=40000,
                    smoke=number % 4 == 0,
                    every_s=0.0,
                    rounds=rounds,
                    timeout_s=TIMEOUT_S,
                    seed=number,
                    ends=True,
                    delivery=Delivery(),
                )
                code = code or await watch(job, folder, environ={}, notify=lines.append)
            return code

    with tempfile.TemporaryDirectory() as folder:
        code = asyncio.run(main(Path(folder)))
    told = "; ".join(line for line in lines if "ALARM" in line.upper())
    return f"exit {code}: {told[:300]}" if code else ""


def verify_once(name, damaged, number):
    """Return what verify says of two servers of one flavour, if it accuses one."""
    route = "--apply-chat-template" if number % 2 else "--no-apply-chat-template"
    faults = {**BROKEN, "seed": number} if damaged else {}
    with (
        tempfile.TemporaryDirectory() as folder,
        flavour_in_thread(name) as good,
        flavour_in_thread(name, **faults) as other,
    ):
        words = ["--model", "M", "--floor", "0.08", "--probes", "60", "--set", f"seed={number!s}"]
        ran = serve_eval(f"verify {good} {other}", *words, route, "-o", folder)
    if ran.returncode == NOT_COMPARABLE:
        return UNJUDGED
    return f"exit {ran.returncode}: {(ran.stdout + ran.stderr)[:300]}" if ran.returncode else ""


TRIALS = {
    "smoke": smoke_once,
    "watch": watch_once,
    "verify": verify_once,
    "attribute": commands.attribute_once,
    "invariants": commands.invariants_once,
    "canaries": commands.canaries_once,
    "tools": commands.tools_once,
    "probes": commands.probes_once,
    "load": commands.load_once,
    "judge": commands.judge_once,
    "lm_eval": commands.lm_eval_once,
}


def try_once(job):
    """Return the flavour of a run of a command, and its accusation."""
    command, damaged, number = job
    turn, place = divmod(number, len(THINKING))
    name = THINKING[place]
    return name, TRIALS[command](
        name, damaged, number + turn
    )  # each flavour gets odd and even ones


def count(command, runs, *, damaged=False):
    """Return the flavour and the words of each accusation in so many runs."""
    with ProcessPoolExecutor(WORKERS) as workers:
        found = list(workers.map(try_once, [(command, damaged, i) for i in range(runs)]))
    return [one for one in found if one[1]]


def count_unjudged(found):
    """Return the number of runs in which nothing could be judged."""
    return sum(said == UNJUDGED for _, said in found)


def main(runs, wanted=""):
    """Print a line for each command: accusations of sound and of damaged servers."""
    for name in TRIALS:
        if wanted not in ("", name):
            continue
        told = count(name, runs)
        found = [one for one in told if one[1] != UNJUDGED]
        low, high = interval(len(found), runs)
        bad = count(name, DAMAGED_RUNS, damaged=True)
        print(
            f"{name}: {len(found)} of {runs} runs accuse a sound server [{low:.3f}, {high:.3f}],"
            f" {count_unjudged(told)} judge nothing; {len(bad) - count_unjudged(bad)} of"
            f" {DAMAGED_RUNS} accuse a damaged one, {count_unjudged(bad)} judge nothing",
            flush=True,
        )
        for flavour, said in found:
            print(f"  {flavour}: {said}", flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100, *sys.argv[2:3])
