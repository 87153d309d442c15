"""Measure the error rates of the early stop and print them as Markdown tables.

Part of `make calibrate`; seeded, printed, never asserted.

The code for real runs (`early_stop.EarlyStopping`) processes the simulated ones sample by sample in
random order, including the reasons that delay a stop.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import numpy

from serve_eval.evaluation.early_stop import EarlyStopping
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.schema import Metric
from serve_eval.stats.betting import GRID
from serve_eval.stats.bounds import bounds
from serve_eval.stats.classic import Decision, classic_test
from serve_eval.stats.drop import drop_test, inflate
from serve_eval.stats.early_paired import EarlyPaired, MarginWealth
from serve_eval.stats.early_stop import EarlyClassic, Wealth
from serve_eval.stats.multiplicity import SPENT_ON_LOOKS
from serve_eval.stats.pairs import pair
from serve_eval.stats.repeats import effect_of, run_effect
from tests.stats.simulation import altered, endpoints, run

if TYPE_CHECKING:
    from numpy.random import Generator

    from serve_eval.stats.inputs import FloatArray

EPS, ALPHA, MAX_MISSING = 0.01, 0.05, 0.02
SIZES = {30: 2000, 100: 2000, 198: 1500, 1319: 400, 4096: 120}
"""Simulated runs by their number of prompts."""
PAIRED_RUNS = {198: 1500, 1319: 500, 4096: 200}
POINT = 0.01
TURNS_BY = 3.2
"""Drop in margins in the second half of an endpoint that degrades; the whole run nearly always
fails.
"""
UNKNOWN = "what comes after a stop cannot be known"

Runs = tuple["FloatArray", "FloatArray"]
"""The reference's mean score per prompt, and the candidate's score (NaN: missing)."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A row: the population, the number of prompts, and the source of the margin.

    `pairs`: the reference's scores are known. `turns_at`: the prompt from which on the endpoint is
    worse.
    """

    name: str
    n: int
    draw: Callable[[Generator, int, float], Runs]
    pairs: bool = True
    sigma: float = 50.0
    alpha: float = ALPHA
    turns_at: int | None = None

    @property
    def margin(self):
        """The classic margin, as a proportion."""
        return -classic_test(self.n, 0.0, self.sigma, self.alpha, 0.2).threshold / 100


@dataclass(frozen=True, slots=True)
class PairedCell:
    """A row of the paired rules: `share` of the margin is the true drop."""

    rule: str
    n: int
    flip_rate: float
    margin: float
    share: float
    references: int = 1


# ----------------------------------------------------------------------------------------------------  # noqa: E501
# populations


def mixture(flip_rate, drop, references, random, n, margin):
    """Draw the mixture of `simulation`, worse by `drop` margins."""
    rows, after = mixture_runs(flip_rate, drop, references, random, n, margin)
    return rows.mean(axis=0), after


def mixture_runs(flip_rate, drop, references, random, n, margin):
    """Return the same with a row for each run of the reference."""
    before = endpoints(random, n, flip_rate=flip_rate)
    after = altered(
        random, before, to_wrong=min(drop * margin, 0.5 * float((before == 1.0).mean()))
    )
    rows = numpy.stack([run(random, before) for _ in range(references)])
    return rows, run(random, after)


def alike(chance, drop, random, n, margin):
    """Draw prompts that are all right with the same chance."""
    before = numpy.full(n, chance)
    return run(random, before), run(random, numpy.clip(before - drop * margin, 0.0, 1.0))


def beta(a, drop, random, n, margin):
    """Draw chances of a right answer from Beta(a, a)."""
    before = random.beta(a, a, n)
    return run(random, before), run(random, numpy.clip(before - drop * margin, 0.0, 1.0))


def missing(lost, wrong, random, n, margin):
    """Drop `lost` answers: of any prompts, or only wrong ones."""
    reference, candidate = mixture(0.034, 0.0, 1, random, n, margin)
    among = numpy.flatnonzero(candidate == 0.0) if wrong else numpy.arange(n)
    candidate[random.choice(among, min(lost, len(among)), replace=False)] = numpy.nan
    return reference, candidate


def turned(flip_rate, random, n, margin):
    """Make the second half worse."""
    half = n // 2
    before = endpoints(random, n, flip_rate=flip_rate)
    after = before.copy()
    after[half:] = altered(
        random, before[half:], to_wrong=min(TURNS_BY * margin, 0.9 * (before[half:] == 1.0).mean())
    )
    return run(random, before), run(random, after)


def rouge(drop, random, n, margin):
    """Draw graded scores around .24; half of them change from run to run."""
    reference = numpy.clip(random.normal(0.24, 0.11, n), 0.0, 1.0)
    changed = random.random(n) < 0.5
    moved = reference + random.normal(-2.0 * drop * margin, 0.08, n)
    return reference, numpy.clip(numpy.where(changed, moved, reference), 0.0, 1.0)


# ----------------------------------------------------------------------------------------------------------  # noqa: E501
# looks


def looked(test, reference, candidate, *, pairs):
    """Look at a run in the same way as at a real one."""
    scores = candidate.tolist()
    accumulator = SimpleNamespace(
        task=SimpleNamespace(metric=Metric()),
        score=scores.__getitem__,
        is_doubted=lambda place: False,
    )
    before = reference.tolist() if pairs else None
    prefix = EarlyStopping(
        cast(ScoreAccumulator, accumulator),
        lambda: test,
        range(len(scores)),
        seed=0,
        higher_is_better=True,
        before=before,
    )
    prefix.look()
    return prefix


def whole(reference, candidate, margin):
    """Return the classic verdict of the whole run."""
    lost = numpy.isnan(candidate)
    if lost.mean() > MAX_MISSING:
        return Decision.UNDECIDED
    worst, best = (
        float((numpy.where(lost, end, candidate) - reference).sum()) for end in (0.0, 1.0)
    )
    limit = -margin * len(reference)
    return (
        Decision.FAIL if best < limit else Decision.PASS if worst >= limit else Decision.UNDECIDED
    )


@dataclass(frozen=True, slots=True)
class Found:
    """Numbers of runs with another decision, and of requests.

    `wrong` counts those of `runs`; `before` are those decided before the endpoint degraded.
    """

    runs: int
    wrong: int
    before: int
    stopped: int
    asked: float


def measure(cell):
    """Simulate the runs of a row; the result is always the same."""
    runs, margin = SIZES[cell.n], cell.margin
    random = numpy.random.default_rng([cell.n, *cell.name.encode()])
    wrong = before = stopped = asked = 0
    for _ in range(runs):
        reference, candidate = cell.draw(random, cell.n, margin)
        if cell.pairs:
            test = EarlyClassic.for_pairs(cell.n, margin, eps=EPS, max_missing=MAX_MISSING)
        else:
            threshold = float(reference.mean()) - margin
            test = EarlyClassic.mean_only(cell.n, threshold, eps=EPS, max_missing=MAX_MISSING)
        prefix = looked(test, reference, candidate, pairs=cell.pairs)
        asked += prefix.looked_at
        if prefix.decision is not None and prefix.looked_at < cell.n:
            stopped += 1
            differs = prefix.decision is not whole(reference, candidate, margin)
            wrong += differs
            before += differs and cell.turns_at is not None and prefix.looked_at <= cell.turns_at
    return Found(runs, wrong, before, stopped, asked / runs / cell.n)


@dataclass(frozen=True, slots=True)
class FoundPaired:
    """Numbers of runs decided by a look, and passed and failed by a look or at the end."""

    runs: int
    stopped: int
    passed: int
    failed: int
    asked: float


def measure_paired(cell):
    """Simulate the runs of a row.

    Looks spend half of alpha, the verdict of a whole run the other half. A reference whose runs
    differ as a whole has no looks, and the verdict has all of alpha.
    """
    runs = PAIRED_RUNS[cell.n]
    code = [
        cell.n,
        round(1e6 * cell.flip_rate),
        round(1e6 * cell.margin),
        round(100 * cell.share),
        cell.references,
    ]
    random = numpy.random.default_rng(code)
    stopped = passed = failed = asked = 0
    for _ in range(runs):
        rows, candidate = mixture_runs(
            cell.flip_rate, cell.share, cell.references, random, cell.n, cell.margin
        )
        effect, decision, looked_at = effect_of(rows), None, cell.n
        looks = effect is None or effect.inflation == 1.0
        if looks:
            test = EarlyPaired(
                cell.n, cell.margin, alpha=SPENT_ON_LOOKS * ALPHA, eps=EPS, max_missing=MAX_MISSING
            )
            prefix = looked(test, rows.mean(axis=0), candidate, pairs=True)
            looked_at = prefix.looked_at
            decision = prefix.decision if looked_at < cell.n else None
        asked += looked_at
        stopped += decision is not None
        if decision is None:
            left = (1.0 - SPENT_ON_LOOKS) * ALPHA if looks else ALPHA
            decision = _at_end(rows, candidate, cell.margin, left)
        passed += decision is Decision.PASS
        failed += decision is Decision.FAIL
    return FoundPaired(runs, stopped, passed, failed, asked / runs / cell.n)


def _at_end(rows, candidate, margin, alpha):
    """Judge by the rule "noninferiority" at the remaining alpha."""
    if len(rows) == 1:
        change = candidate - rows[0]
        down, up = int((change < 0).sum()), int((change > 0).sum())
        return _judge_counts(len(change), down, up, margin, alpha)
    pairs = pair(rows, candidate[None], lo=0.0, hi=1.0, higher_is_better=True)
    return _judge_pairs(pairs, margin, alpha)


def _judge_pairs(pairs, margin, alpha):
    """Decide as `verdicts.rules.noninferiority` does."""
    effect = run_effect(pairs)
    inflation = 1.0 if effect is None else effect.inflation
    ends = bounds(pairs, alpha, inflation)
    if ends.lower > -margin:
        return Decision.PASS
    if ends.upper >= -margin:
        return Decision.UNDECIDED
    p = inflate(drop_test(pairs), inflation).p
    return Decision.FAIL if p is not None and p <= alpha else Decision.UNDECIDED


@cache
def _judge_counts(n, down, up, margin, alpha):
    places = numpy.arange(n)
    pairs = pair(
        places >= up, (places < up) | (places >= up + down), lo=0.0, hi=1.0, higher_is_better=True
    )
    return _judge_pairs(pairs, margin, alpha)


# ------------------------------------------------------------------------------------------------
# requests needed


def needed(flip_rate, margin):
    """Return median requests until a drop of the margin is excluded if there is none.

    The values are for fixed stakes alone and for those in use, each at the whole alpha and at half
    of it. Only the bet counts: runs have no end, and nothing is missing.
    """
    random = numpy.random.default_rng([round(1e6 * flip_rate), round(1e6 * margin)])
    half, most, counts = margin / 2, 12_000, numpy.full((200, 4), numpy.inf)
    for row in counts:
        before = endpoints(random, most, flip_rate=flip_rate)
        values = (0.5 + (run(random, before) - run(random, before)) / 2).tolist()
        for first, bet in (
            (0, Wealth(0.5 - half, None, 0.0, 1.0)),
            (2, MarginWealth(0.5 - half, half)),
        ):
            for t, value in enumerate(values, 1):
                wealth = bet.bet(value)
                if wealth >= 1 / ALPHA and row[first] == numpy.inf:
                    row[first] = t
                if wealth >= 2 / ALPHA:
                    row[first + 1] = t
                    break
    return [float(median) for median in numpy.median(counts, axis=0)]


# ---------------------------------------------------------------------------------------------------------  # noqa: E501
# tables


def cells():
    """Return all rows of the classic rule."""
    found = []

    def add(name, draw, *, sizes=tuple(SIZES), **more):
        found.extend(Cell(name, n, draw, **more) for n in sizes)

    for flip_rate in (0.011, 0.034, 0.088, 0.191):
        add(f"flip rate {flip_rate}", partial(mixture, flip_rate, 0.0, 1))
    for flip_rate in (0.034, 0.191):
        add(f"flip rate {flip_rate}, drop m", partial(mixture, flip_rate, 1.0, 1))
    add("flip rate 0.034, drop theta", partial(mixture, 0.034, 1.51, 1))
    add("flip rate 0.034, drop m, 3 reference runs", partial(mixture, 0.034, 1.0, 3))
    add("mean only, flip rate 0.034", partial(mixture, 0.034, 0.0, 1), pairs=False)
    add("mean only, flip rate 0.034, drop m", partial(mixture, 0.034, 1.0, 1), pairs=False)
    for chance in (0.01, 0.1, 0.99):
        add(f"every prompt at {chance}", partial(alike, chance, 0.0))
    add("every prompt at 0.99, drop m", partial(alike, 0.99, 1.0))
    add("Beta(0.5, 0.5)", partial(beta, 0.5, 0.0))
    add("Beta(2, 2), drop m", partial(beta, 2.0, 1.0))
    add("ROUGE-like", partial(rouge, 0.0), sigma=11.06, alpha=0.002)
    add("ROUGE-like, drop m", partial(rouge, 1.0), sigma=11.06, alpha=0.002)
    for lost in (1, 2, 3, 4):
        for wrong in (False, True):
            where = "of wrong answers" if wrong else "at random"
            add(f"{lost} missing {where}", partial(missing, lost, wrong), sizes=(30, 100, 198))
    for lost in (26, 27):
        add(f"{lost} missing at random", partial(missing, lost, False), sizes=(1319,))
    for flip_rate in (0.034, 0.088):
        for n in SIZES:
            name = f"turns worse at half, flip rate {flip_rate}"
            found.append(Cell(name, n, partial(turned, flip_rate), turns_at=n // 2))
    for n in SIZES:
        name = "mean only, turns worse at half, flip rate 0.034"
        found.append(Cell(name, n, partial(turned, 0.034), pairs=False, turns_at=n // 2))
    return found


def paired_cells():
    """Return all rows of the paired rules."""
    found = []
    for share in (1.0, 0.0):
        for n in (1319, 4096):
            found += [
                PairedCell("1 point", n, flip_rate, POINT, share) for flip_rate in (0.011, 0.034)
            ]
            found.append(
                PairedCell("1 point, 3 reference runs", n, 0.034, POINT, share, references=3)
            )
        for n in PAIRED_RUNS:
            margin = -classic_test(n, 0.0, 50.0, ALPHA, 0.2).threshold / 100
            found += [PairedCell("m", n, flip_rate, margin, share) for flip_rate in (0.034, 0.088)]
    return found


def interval(hits, of):
    """Return the exact 95 % interval of a share (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    low = 0.0 if hits == 0 else float(betaincinv(hits, of - hits + 1, 0.025))
    high = 1.0 if hits == of else float(betaincinv(hits + 1, of - hits, 0.975))
    return low, high


def _rate(hits, of):
    low, high = interval(hits, of)
    return f"{100 * hits / of:.1f} ({100 * low:.1f} to {100 * high:.1f})"


def _row(name, found):
    """Return the row of a population: runs that differ and the share asked, by number of prompts.

    A star marks a value beyond its promise, with the reason.
    """
    shown, why = [], []
    for n in SIZES:
        one = found.get(n)
        if one is None:
            shown.append("")
            continue
        beyond = interval(one.wrong, one.runs)[0] > EPS
        shown.append(f"{_rate(one.wrong, one.runs)}{'*' if beyond else ''}; {_share(one)}")
        if beyond and one.before:
            before, after = 100 * one.before / one.runs, _rate(one.wrong - one.before, one.runs)
            why.append(f"of {n}: {before:.1f} before the change, {after} after it")
        elif beyond:
            why.append(f"of {n}: beyond its promise")
    if why and any(one.before for one in found.values()):
        why.append(UNKNOWN)
    return [name, *shown, "; ".join(why)]


def _share(found):
    return f"{100 * found.asked:.0f}"


def _paired_row(cell, found):
    wrong, low = (found.passed, "PASS") if cell.share == 1.0 else (found.failed, "FAIL")
    right = "" if cell.share == 1.0 else f"{100 * found.passed / found.runs:.0f}"
    why = "beyond its promise" if interval(wrong, found.runs)[0] > ALPHA else ""
    drop = "m" if cell.share == 1.0 else "0"
    return [
        f"{cell.rule}, flip rate {cell.flip_rate}",
        str(cell.n),
        drop,
        f"{low} {_rate(wrong, found.runs)}",
        right,
        f"{100 * found.stopped / found.runs:.0f}",
        _share(found),
        why,
    ]


def _table(header, rows):
    lines = [header, ["---", *["--:"] * (len(header) - 2), "---"], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main():
    began, classic, paired = time.monotonic(), cells(), paired_cells()
    classic.sort(key=lambda cell: -cell.n * SIZES[cell.n])
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        needs = [pool.submit(needed, flip_rate, POINT) for flip_rate in (0.011, 0.034)]
        ends = list(pool.map(measure_paired, paired))
        rows = dict(zip(classic, pool.map(measure, classic, chunksize=4), strict=True))
        medians = [one.result() for one in needs]
    by_name = {cell.name: {} for cell in cells()}
    for cell, one in rows.items():
        by_name[cell.name][cell.n] = one
    print(
        "Early classic verdicts that differ from the whole run's, in % of the runs (exact 95 %"
        f" interval), nominally {100 * EPS:g} at most; % of the prompts that were asked, on"
        " average:\n"
    )
    head = ["prompts", *(f"n = {n}" for n in SIZES), "remark"]
    print(_table(head, [_row(name, found) for name, found in by_name.items()]))
    print(
        f"\nRules that compare pairs, alpha {ALPHA:g}, half of it on the looks; wrong verdicts in"
        f" %, by looks and end together, nominally {100 * ALPHA:g} at most:\n"
    )
    head = ["margin", "n", "drop", "wrong", "PASS, %", "stopped, %", "asked, %", "remark"]
    print(
        _table(head, [_paired_row(cell, found) for cell, found in zip(paired, ends, strict=True)])
    )
    print(
        "\nMedian requests until a drop of 1 point is excluded where there is none, with"
        f" {len(GRID)} fixed stakes:\n"
    )
    print(
        "| flip rate | fixed, alpha .05 | fixed, .025 | in use, .05 | in use, .025 |\n| --- | --: |"
        " --: | --: | --: |"
    )
    for flip_rate, row in zip((0.011, 0.034), medians, strict=True):
        print(f"| {flip_rate} | {' | '.join(f'{one:.0f}' for one in row)} |")
    print(f"\n{time.monotonic() - began:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
