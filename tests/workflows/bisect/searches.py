"""Search between two plans, of which a known change breaks the accuracy.

The plain bisection asks every configuration everything and calls it bad if its value is below the
threshold of the classic test (alpha 0.05) against the good one. With options, it adds them in their
order.
"""

import json
import os
import statistics
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import msgspec

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers import simulated
from serve_eval.launchers._machine import lock_files
from serve_eval.schema import Bisection, Limits, Plan, Spec
from serve_eval.stats.classic import classic_test
from serve_eval.storage.report_file import read_report
from serve_eval.storage.story_files import BISECT
from serve_eval.workflows.bisect.bisect import bisect
from serve_eval.workflows.bisect.configurations import (
    BisectRules,
    along_steps,
    between_plans,
    fill_in,
    list_changes,
)
from serve_eval.workflows.bisect.search import FOUND
from serve_eval.workflows.bisect.testing import plan_reference
from tests.launchers.machine import Smi
from tests.standin.deployments import FOLDER, write_answers

INCLUDED = Path(__file__).with_name("included")
OPTIONS = ("speculation", "overlap", "kv_dtype", "graphs", "chunking", "tp")
STEPS = tuple(f"v{number}" for number in range(1, 17))


def build_plan(options, *, samples, order_seed=None):
    """Return a plan for the launcher with these options."""
    return Plan(
        model="model",
        launcher=Spec(name="breakable", options=options),
        tasks=(Spec(name="word_problems", options={"num_samples": samples}),),
        include_path=(str(INCLUDED),),
        limits=Limits(concurrency=16, order_seed=order_seed),
    )


def build_options(breaks, *, names=OPTIONS, samples=200, **more):
    """Return the search between a plan with all options off and one with all on."""
    order_seed = more.pop("order_seed", None)
    common = {"breaks": list(breaks), **more}
    good = build_plan(
        {**common, "served": dict.fromkeys(names, False)}, samples=samples, order_seed=order_seed
    )
    options = {**common, "served": dict.fromkeys(names, True)}
    bad = replace(good, launcher=Spec(name="breakable", options=options))
    return between_plans(good, list_changes(good, bad))


def build_steps(first_bad, *, steps=STEPS, samples=200, **more):
    """Return the search along steps, of which those from number `first_bad` on are bad."""
    order_seed = more.pop("order_seed", None)
    bad = [] if first_bad is None else list(steps[first_bad:])
    options = {"bad_steps": bad, "step": "{step}", **more}
    plans = [
        build_plan(fill_in(options, step), samples=samples, order_seed=order_seed) for step in steps
    ]
    return along_steps(plans, steps)


MODEL = "my-org/my-model"
GOOD = {
    "kv_cache_config": {"dtype": "auto", "tokens_per_block": 32},
    "enable_chunked_prefill": False,
    "disable_overlap_scheduler": True,
}
BAD = {
    "kv_cache_config": {"dtype": "fp8", "tokens_per_block": 64},
    "enable_chunked_prefill": True,
    "disable_overlap_scheduler": False,
    "cuda_graph_config": {"enable_padding": True},
    "quant_config": {"quant_algo": "FP8"},
}
BROKEN = {
    "config.kv_cache_config.dtype": {"kv_cache_config.dtype": "fp8"},
    "config.kv_cache_config.tokens_per_block": {"kv_cache_config.tokens_per_block": 64},
    "config.enable_chunked_prefill": {"enable_chunked_prefill": True},
    "config.disable_overlap_scheduler": {"disable_overlap_scheduler": False},
    "config.cuda_graph_config": {"cuda_graph_config.enable_padding": True},
    "config.quant_config": {"quant_config.quant_algo": "FP8"},
}
"""The arguments of the model that the bad value of each option gives the server."""


def build(
    folder,
    breaks,
    *,
    samples,
    damage,
    accuracy=0.8,
    flip_rate=None,
    order_seed=None,
    tp=1,
    more_env=None,
):
    """Return the search; with all options in `breaks`, a share `damage` of the answers is wrong.

    `tp` is that of the bad plan.
    """
    when = {key: value for name in breaks for key, value in BROKEN[name].items()}
    fault = {"corrupt_after": 0, "share": damage, "when": when}
    env = {
        "STANDIN_PYTHON": sys.executable,
        "STANDIN_ANSWERS": str(folder / "answers.jsonl"),
        "STANDIN_RUN": "new",
        **({"STANDIN_FAULTS": json.dumps(fault)} if breaks else {}),
        **(more_env or {}),
    }
    command = str(FOLDER / "trtllm-serve")
    options = {"command": command, "config": {**GOOD}, "env": env, "tp": 1}
    good = Plan(
        model=MODEL,
        launcher=Spec(name="trtllm", options=options),
        tasks=(Spec(name="word_problems", options={"num_samples": samples}),),
        no_reference=True,
        limits=Limits(concurrency=16, order_seed=order_seed),
    )
    chance = simulated.probability(accuracy, flip_rate, 0)
    write_answers(good, folder / "answers.jsonl", chance)
    changed = {**options, "config": {**BAD}, "tp": tp}
    bad = replace(good, launcher=Spec(name="trtllm", options=changed))
    return between_plans(good, list_changes(good, bad))


@contextmanager
def two_gpus(folder):
    """Give the launcher two GPUs, which a fake nvidia-smi shows, and locks of its own."""
    smi = Smi(folder / "bin")
    smi.tells("0, GPU-a, 0", "1, GPU-b, 0")
    found = {
        "PATH": f"{smi.folder}{os.pathsep}{os.environ['PATH']}",
        lock_files.VARIABLE: str(folder / "locks"),
    }
    with mock.patch.dict(os.environ, found):
        yield


BUDGET = 20
"""Server starts after which a search ends undecided."""
_COLUMNS = "right | wrong | undecided | starts (median, max) | requests (median)"
OURS = f"case | bisect: {_COLUMNS}"
HEADER = f"{OURS} | plain: {_COLUMNS}"


@dataclass(frozen=True)
class Outcome:
    """The answer of one search (None: undecided) and its cost."""

    answer: tuple[str, ...] | None
    right: bool
    starts: int
    requests: int


class Tried(msgspec.Struct):
    """A trial as a line of a file: the case, and the outcomes of our search and of the plain one.

    The plain one may be left out.
    """

    case: str
    outcomes: tuple[Outcome, ...]


class TrialFile:
    """The trials so far, kept in a file so that a later run goes on."""

    def __init__(self, path):
        self._path = path

    def read(self, case):
        """Return the outcomes of a case."""
        lines = self._path.read_bytes() if self._path.exists() else b""
        tried = msgspec.json.Decoder(Tried).decode_lines(lines)
        return [one.outcomes for one in tried if one.case == case]

    def add(self, case, outcomes):
        """Add a trial."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(Tried(case, outcomes)) + b"\n")


async def try_both(
    found,
    truth,
    out,
    *,
    margin=None,
    reuse=True,
):
    """Run our search and the plain one.

    With `reuse`, the plain one takes from ours the runs that ask everything.
    """
    ours = await search(found, truth, margin, out / "ours")
    known = list_full_runs(out / "ours") if reuse else {}
    return ours, await search_plainly(found, truth, out / "plain", known)


def read_answer(state):
    """Return the named culprits, none for "no option", None if it is undecided."""
    if state.ending != FOUND or state.exit_code == 3:
        return None
    first = state.suspects[0]
    return (first.kind, *first.members) if first.kind == "either" else first.members


async def search(found, truth, margin, out):
    """Run our search."""
    state = await bisect(found, BisectRules(margin=margin, budget_starts=BUDGET), out)
    answer = read_answer(state)
    right = answer is not None and set(answer) == {*truth}
    return Outcome(answer, right, state.starts, state.requests)


def list_full_runs(out):
    """Return the run folders of the configurations that our search asked everything."""
    state = BISECT.read(out, Bisection)
    full = [step for step in state.steps if step.asked == state.samples]
    return {step.configuration: out / step.folder for step in full}


async def search_plainly(found, truth, out, known):
    """Run a plain bisection with full runs; those that are `known` are not repeated."""
    requests, starts = 0, 0

    async def measure(configuration):
        nonlocal requests, starts
        starts += 1
        if configuration in known:
            report = read_report(known[configuration])
        else:
            plan = plan_reference(found.make(configuration))
            report = await evaluate(plan, out / f"{starts:02d}")
        requests += report.tasks[0].result.scored
        assert report.tasks[0].result.value is not None
        return report.tasks[0].result.value

    before = await measure(0)
    samples = requests
    threshold = classic_test(samples, before, 50.0, 0.05, 0.2, True).threshold
    row = list(range(found.space.size + 1))
    if not found.space.ordered:
        row = [(1 << i) - 1 for i in row]
    good, bad = 0, len(row) - 1
    answer = ()
    if await measure(row[bad]) < threshold:
        while bad - good > 1:
            middle = (good + bad) // 2
            if await measure(row[middle]) < threshold:
                bad = middle
            else:
                good = middle
        answer = (found.changes[bad - 1].name,)
    return Outcome(answer, set(answer) == {*truth}, starts, requests)


def tell_case(name, trials):
    """Return the line of a case, and the wrong answers of our search."""
    ours = [outcomes[0] for outcomes in trials]
    line = " | ".join((name, *map(_tell, zip(*trials, strict=True))))
    wrong = Counter(one.answer for one in ours if one.answer is not None and not one.right)
    told = "; ".join(f"{' '.join(kind) or 'no option'} {n}" for kind, n in wrong.items())
    return f"{line}\n  wrong: {told}" if wrong else line


def _tell(outcomes):
    right = sum(one.right for one in outcomes)
    undecided = sum(one.answer is None for one in outcomes)
    starts = [one.starts for one in outcomes]
    requests = statistics.median(one.requests for one in outcomes)
    return " | ".join(
        (
            f"{right} of {len(outcomes)}",
            f"{len(outcomes) - right - undecided}",
            f"{undecided}",
            f"{statistics.median(starts):g}, {max(starts)}",
            f"{requests:.0f}",
        )
    )
