"""Search twice for what broke the accuracy, by our bisection and by a plain one, and tell both.

The plain bisection asks every configuration everything and calls it bad if its value is below the
threshold of the classic test (alpha 0.05) against the good one. With options, it adds them in their
order.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from serve_eval.evaluation.evaluate import evaluate
from serve_eval.schema import Bisection
from serve_eval.stats.classic import classic_test
from serve_eval.storage.reports.report_file import read_report
from serve_eval.storage.story_files import BISECT
from serve_eval.workflows.bisect.bisect import bisect
from serve_eval.workflows.bisect.configurations import Configurations
from serve_eval.workflows.bisect.search import FOUND, BisectRules
from serve_eval.workflows.bisect.testing import plan_reference

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

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self, case: str) -> list[tuple[Outcome, ...]]:
        """Return the outcomes of a case."""
        lines = self._path.read_bytes() if self._path.exists() else b""
        tried = msgspec.json.Decoder(Tried).decode_lines(lines)
        return [one.outcomes for one in tried if one.case == case]

    def add(self, case: str, outcomes: tuple[Outcome, ...]) -> None:
        """Add a trial."""
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(Tried(case, outcomes)) + b"\n")


async def try_both(
    found: Configurations,
    truth: Sequence[str],
    out: Path,
    *,
    margin: float | None = None,
    reuse: bool = True,
) -> tuple[Outcome, Outcome]:
    """Run our search and the plain one.

    With `reuse`, the plain one takes from ours the runs that ask everything.
    """
    ours = await search(found, truth, margin, out / "ours")
    known = list_full_runs(out / "ours") if reuse else {}
    return ours, await search_plainly(found, truth, out / "plain", known)


def read_answer(state: Bisection) -> tuple[str, ...] | None:
    """Return the named culprits, none for "no option", None if it is undecided."""
    if state.ending != FOUND or state.exit_code == 3:
        return None
    first = state.suspects[0]
    return (first.kind, *first.members) if first.kind == "either" else first.members


async def search(
    found: Configurations, truth: Sequence[str], margin: float | None, out: Path
) -> Outcome:
    """Run our search."""
    state = await bisect(found, BisectRules(margin=margin, budget_starts=BUDGET), out)
    answer = read_answer(state)
    right = answer is not None and set(answer) == {*truth}
    return Outcome(answer, right, state.starts, state.requests)


def list_full_runs(out: Path) -> dict[int, Path]:
    """Return the run folders of the configurations that our search asked everything."""
    state = BISECT.read(out, Bisection)
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


def tell_case(name: str, trials: Sequence[tuple[Outcome, ...]]) -> str:
    """Return the line of a case, and the wrong answers of our search."""
    ours = [outcomes[0] for outcomes in trials]
    line = " | ".join((name, *map(_tell, zip(*trials, strict=True))))
    wrong = Counter(one.answer for one in ours if one.answer is not None and not one.right)
    told = "; ".join(f"{' '.join(kind) or 'no option'} {n}" for kind, n in wrong.items())
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
