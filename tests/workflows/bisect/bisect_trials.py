"""Count how often a bisection names the culprit, and what it costs, against a plain bisection.

`python -m tests.workflows.bisect.bisect_trials` prints a table of 20 trials per case with simulated
servers, whose answers differ between two starts on 6 % of the prompts. `--trials N` sets the
number, `--embedded` starts the embedded model in processes of its own, and further words name the
cases.

The plain bisection asks every configuration everything and calls it bad if its value is below the
threshold of the classic test (alpha 0.05) against the good one. With options, it adds them in their
order.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from launchers import embedded
from launchers._embedded.damage import Damage
from serve_eval.evaluation.evaluate import evaluate
from serve_eval.evaluation.storage.reports.bisection_files import find_bisection
from serve_eval.evaluation.storage.reports.report_file import read_report
from serve_eval.plugins.scope import scope
from serve_eval.schema import Bisection, LaunchContext
from serve_eval.stats.classic import classic_test
from serve_eval.workflows.bisect.bisect import bisect
from serve_eval.workflows.bisect.configurations import Configurations
from serve_eval.workflows.bisect.search import FOUND, BisectRules
from serve_eval.workflows.bisect.testing import plan_reference
from tests.workflows.bisect.breaking import OPTIONS, STEPS, build_options, build_steps

TRIALS, SAMPLES, SAMPLES_EMBEDDED = 20, 500, 200
BITS: Damage = "int3"
BUDGET = 20
"""Server starts after which a search ends undecided."""


@dataclass(frozen=True)
class Case:
    """A kind of breakage: the number of culprits, the share of right answers that is lost."""

    name: str
    culprits: int = 1
    ordered: bool = False
    damage: float = 0.25
    margin: float | None = None


CASES = (
    Case("one of 6 options"),
    Case("two of 6 together", culprits=2),
    Case("a step of 16", ordered=True),
    Case("nothing, 6 options", culprits=0),
    Case("one of 6, drop 4", damage=0.05),
    Case("a step of 16, drop 4", ordered=True, damage=0.05),
    Case("one of 6, drop = margin 4", damage=0.05, margin=4.0),
)


@dataclass(frozen=True)
class Outcome:
    """The answer of one search (None: undecided) and its cost."""

    answer: tuple[str, ...] | None
    right: bool
    starts: int
    requests: int


def build(case: Case, seed: int, running: str) -> tuple[Configurations, tuple[str, ...]]:
    """Return the search of a trial and the names of its culprits."""
    drawing = random.Random(f"{case.name}:{seed}")
    more: dict[str, Any] = {
        "damage": case.damage,
        "order_seed": drawing.randrange(10**6),
        "samples": SAMPLES_EMBEDDED if running else SAMPLES,
        **({"bits": BITS, "running": running} if running else {"flip_rate": 0.06}),
    }
    if case.ordered:
        first = drawing.randrange(1, len(STEPS))
        return build_steps(first, **more), (STEPS[first],)
    culprits = tuple(sorted(drawing.sample(OPTIONS, case.culprits), key=OPTIONS.index))
    return build_options(culprits, **more), tuple(f"served.{name}" for name in culprits)


def read_answer(state: Bisection) -> tuple[str, ...] | None:
    """Return the named culprits, none for "no option", None if it is undecided."""
    if state.ending != FOUND or state.exit_code == 3:
        return None
    first = state.suspects[0]
    return (first.kind, *first.members) if first.kind == "either" else first.members


async def search(found: Configurations, truth: Sequence[str], case: Case, out: Path) -> Outcome:
    """Run our search."""
    state = await bisect(found, BisectRules(margin=case.margin, budget_starts=BUDGET), out)
    answer = read_answer(state)
    right = answer is not None and set(answer) == {*truth}
    return Outcome(answer, right, state.starts, state.requests)


def list_full_runs(out: Path) -> dict[int, Path]:
    """Return the run folders of the configurations that our search asked everything."""
    state = find_bisection(out)
    assert state is not None
    full = [step for step in state.steps if step.asked == state.samples]
    return {step.configuration: out / step.folder for step in full}


async def search_plainly(
    found: Configurations, truth: Sequence[str], out: Path, known: Mapping[int, Path]
) -> Outcome:
    """Run a plain bisection with full runs; those that are `known` are not repeated."""
    requests, starts = 0, 0

    async def measure(configuration: int) -> float:
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
    answer: tuple[str, ...] = ()
    if await measure(row[bad]) < threshold:
        while bad - good > 1:
            middle = (good + bad) // 2
            if await measure(row[middle]) < threshold:
                bad = middle
            else:
                good = middle
        answer = (found.changes[bad - 1].name,)
    return Outcome(answer, set(answer) == {*truth}, starts, requests)


async def run_case(case: Case, trials: int, running: str) -> str:
    """Return a line of the table."""
    ours, plain = [], []
    for seed in range(trials):
        found, truth = build(case, seed, running)
        with tempfile.TemporaryDirectory() as folder, scope():
            out = Path(folder)
            ours.append(await search(found, truth, case, out / "ours"))
            known = list_full_runs(out / "ours") if running else {}
            plain.append(await search_plainly(found, truth, out / "plain", known))
    wrong = Counter(one.answer for one in ours if one.answer is not None and not one.right)
    told = "; ".join(f"{' '.join(kind) or 'no option'} {n}" for kind, n in wrong.items())
    line = " | ".join((case.name, _tell(ours), _tell(plain)))
    return f"{line}\n  wrong: {told}" if wrong else line


def _tell(outcomes: Sequence[Outcome]) -> str:
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


async def print_table(trials: int, names: Sequence[str], running: str) -> None:
    """Print a line for each case; the names are beginnings of theirs."""
    columns = "right | wrong | undecided | starts (median, max) | requests (median)"
    print(f"case | bisect: {columns} | plain: {columns}")
    for case in CASES:
        if names and not case.name.startswith(tuple(names)):
            continue
        if running and case.damage != CASES[0].damage:
            continue
        print(await run_case(case, trials, running), flush=True)


async def print_embedded(trials: int, names: Sequence[str]) -> None:
    """Print the table with one process of the embedded model, intact and damaged."""
    options = embedded.EmbeddedOptions(also={BITS: BITS})
    with tempfile.TemporaryDirectory() as folder:
        context = LaunchContext(model="none", log_dir=Path(folder))
        async with embedded.launch(context, options) as endpoint:
            await print_table(trials, names, endpoint.base_url)


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--embedded", action="store_true")
    parser.add_argument("cases", nargs="*", help="beginnings of the names of the cases")
    given = parser.parse_args(arguments)
    if given.embedded:
        asyncio.run(print_embedded(given.trials, given.cases))
    else:
        asyncio.run(print_table(given.trials, given.cases, ""))


if __name__ == "__main__":
    main()
