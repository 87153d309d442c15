"""Count how often a bisection names the culprit, and what it costs, against a plain bisection.

`python -m tests.workflows.bisect.searches` prints a table of 20 trials per case with simulated
servers, whose answers differ between two starts on 6 % of the prompts. `--trials N` sets the
number, and further words name the cases. `--embedded` asks the embedded model: one process serves
it intact and damaged, and stands for all servers. `--standin` starts the stand-in for trtllm-serve
with real options.
"""

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import tempfile
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import msgspec

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.launchers import embedded, simulated
from serve_eval.launchers._embedded.damage import Damage
from serve_eval.launchers._machine import lock_files
from serve_eval.plugins.scope import scope
from serve_eval.schema import Bisection, LaunchContext, Limits, Plan, Spec
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
from tests.launchers.conftest import Smi
from tests.standin.deployments import FOLDER, write_answers
from tests.workflows.bisect import searches

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


TRIALS, SAMPLES, SAMPLES_EMBEDDED = 20, 500, 200
BITS = "int3"
STANDIN_SAMPLES, STANDIN_DAMAGE = 300, 0.3


@dataclass(frozen=True)
class Case:
    """A kind of breakage: the number of culprits, the share of right answers that is lost.

    The embedded model has weights of fewer bits instead.
    """

    name: str
    culprits: int = 1
    ordered: bool = False
    damage: float = 0.25
    margin: float | None = None
    bits: Damage = BITS


CASES = (
    Case("one of 6 options"),
    Case("two of 6 together", culprits=2),
    Case("a step of 16", ordered=True),
    Case("nothing, 6 options", culprits=0),
    Case("one of 6, drop 4", damage=0.05),
    Case("a step of 16, drop 4", ordered=True, damage=0.05),
    Case("one of 6, drop = margin 4", damage=0.05, margin=4.0),
)
NEAR = "int4"
EMBEDDED_CASES = (
    *(case for case in CASES if case.damage == CASES[0].damage),
    Case("one of 6, four bits", bits=NEAR),
    Case("a step of 16, four bits", ordered=True, bits=NEAR),
)
"""The last ones lose some 3 points of 500 problems, about what the classic test detects."""


@dataclass(frozen=True)
class Given:
    """The arguments: `running` is the address of the embedded model."""

    trials: int
    names: tuple[str, ...]
    standin: bool
    file: TrialFile | None
    running: str = ""


def build_bisect(case, seed, running, standin):
    """Return the search of a trial and the names of its culprits.

    `standin` is the folder for a search with the stand-in.
    """
    drawing = random.Random(f"{case.name}:{seed}")
    more: dict[str, Any]
    if standin is not None:
        breaks = tuple(drawing.sample([*searches.BROKEN], case.culprits))
        order_seed = drawing.randrange(10**6)
        more = {"damage": STANDIN_DAMAGE, "flip_rate": 0.06, "order_seed": order_seed}
        return searches.build(standin, breaks, samples=STANDIN_SAMPLES, **more), breaks
    more = {
        "damage": case.damage,
        "order_seed": drawing.randrange(10**6),
        "samples": SAMPLES_EMBEDDED if running and case.bits == BITS else SAMPLES,
        **({"bits": case.bits, "running": running} if running else {"flip_rate": 0.06}),
    }
    if case.ordered:
        first = drawing.randrange(1, len(STEPS))
        return build_steps(first, **more), (STEPS[first],)
    culprits = tuple(sorted(drawing.sample(OPTIONS, case.culprits), key=OPTIONS.index))
    return build_options(culprits, **more), tuple(f"served.{name}" for name in culprits)


async def run_case(case, given):
    """Return a line of the table."""
    tried = given.file.read(case.name) if given.file else []
    for seed in range(len(tried), given.trials):
        with tempfile.TemporaryDirectory() as text, scope():
            out = Path(text)
            found, truth = build_bisect(case, seed, given.running, out if given.standin else None)
            reuse = given.standin or bool(given.running)
            tried.append(await try_both(found, truth, out, margin=case.margin, reuse=reuse))
        if given.file:
            given.file.add(case.name, tried[-1])
    return tell_case(case.name, tried)


async def print_table(given):
    """Print a line for each case."""
    print(HEADER)
    for case in EMBEDDED_CASES if given.running else CASES:
        if given.names and not case.name.startswith(given.names):
            continue
        if given.standin and case.damage != CASES[0].damage:
            continue
        if given.standin and case.ordered:
            continue
        print(await run_case(case, given), flush=True)


async def print_embedded(given):
    """Print the table with one process of the embedded model, intact and damaged."""
    options = embedded.EmbeddedOptions(also={BITS: BITS, NEAR: NEAR})
    with tempfile.TemporaryDirectory() as folder:
        context = LaunchContext(model="none", log_dir=Path(folder))
        async with embedded.launch(context, options) as endpoint:
            await print_table(replace(given, running=endpoint.base_url))


def main(arguments=None):
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("--standin", action="store_true")
    parser.add_argument("--file", type=Path, help="trials so far: go on where it ends")
    parser.add_argument("cases", nargs="*", help="beginnings of the names of the cases")
    read = parser.parse_args(arguments)
    file = TrialFile(read.file) if read.file else None
    given = Given(read.trials, tuple(read.cases), read.standin, file)
    with tempfile.TemporaryDirectory() as folder, two_gpus(Path(folder)):
        asyncio.run(print_embedded(given) if read.embedded else print_table(given))


if __name__ == "__main__":
    main()
