"""Measure verdicts of healthy endpoints by rule, for one task and for eight: `make calibrate`.

The reference is one run or the mean of three, and the candidate one more run of the same endpoint.
Figures are percentages of simulated runs with their exact 95 % intervals. The simulations are
seeded; nothing is asserted.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, NamedTuple

import numpy

from serve_eval.schema import (
    AccuracySpec,
    Hypothesis,
    Reference,
    RepairedPolicy,
)
from serve_eval.stats.classic import classic_test
from serve_eval.stats.judgement import judge
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.pairs import pair
from serve_eval.verdicts import repaired
from serve_eval.verdicts.rules import classic, paired
from serve_eval.verdicts.validity import MAX_MISSING
from tests.made_results import make_result
from tests.stats.calibrate_paired import share
from tests.stats.simulation import endpoints, run

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

    Random = numpy.random.Generator

RUNS, OF_MANY = 1000, 250
ALPHA = 0.05


@dataclass(frozen=True, slots=True)
class Cell:
    """A task of `n` prompts, of which two runs of one endpoint change `flip_rate`."""

    task: str
    n: int
    flip_rate: float
    before: int = 1


CELLS = [
    Cell(task, n, flip_rate, before)
    for task, n, rates in (
        ("gpqa_diamond", 198, (0.034, 0.191, 0.3)),
        ("gsm8k", 1319, (0.034, 0.1)),
        ("mmlu", 4096, (0.034,)),
    )
    for flip_rate in rates
    for before in (1, 3)
]
EIGHT = [Cell("gsm8k", n, rate) for n, rate in ((198, 0.191), (1319, 0.034))]


def judge_once(cell, random):
    """Return the outcomes by classic and by paired, and the p of the second, of a healthy run."""
    chances = endpoints(random, cell.n, flip_rate=cell.flip_rate, accuracy=0.5)
    reference = [run(random, chances) for _ in range(cell.before)]
    candidate = run(random, chances)
    value = 100 * float(numpy.mean([one.mean() for one in reference]))
    threshold = classic_test(cell.n, value, 50.0, ALPHA, 0.2).threshold
    classic = "PASS" if 100 * float(candidate.mean()) >= threshold else "FAIL"
    pairs = pair(reference, [candidate], lo=0.0, hi=1.0, higher_is_better=True)
    told = judge(pairs, margin=(value - threshold) / 100, alpha=ALPHA, max_missing=0.02)
    return classic, told.finding.value, told.test.p or 1.0


def show_one():
    """Print the outcomes of single tasks."""
    print(
        "| task, n | flip rate | reference runs | classic FAIL | paired PASS | INCONCLUSIVE"
        " | FAIL |"
    )
    print("|---|---|---|---|---|---|---|")
    for number, cell in enumerate(CELLS):
        random = numpy.random.default_rng([20261129, number])
        found = [judge_once(cell, random) for _ in range(RUNS)]
        classic = Counter(one[0] for one in found)
        paired = Counter(one[1] for one in found)
        passed = paired["PASS"] + paired["SMALL_DROP"]
        cells = (
            *(f"{cell.task}, {cell.n}", f"{cell.flip_rate:g}", f"{cell.before}"),
            *(share(classic["FAIL"], RUNS), share(passed, RUNS)),
            *(share(paired["INCONCLUSIVE"], RUNS), share(paired["FAIL"], RUNS)),
        )
        print(f"| {' | '.join(cells)} |")


def show_eight():
    """Print how often any of eight tasks of a healthy run fails, or proves a drop."""
    print(
        "\n| eight tasks of n | flip rate | classic, any FAIL | paired, any FAIL alone | with Holm"
        " | any proven drop alone | with Holm |"
    )
    print("|---|---|---|---|---|---|---|")
    for number, cell in enumerate(EIGHT):
        random = numpy.random.default_rng([20261130, number])
        runs = [[judge_once(cell, random) for _ in range(8)] for _ in range(OF_MANY)]
        cells = (
            *(f"{cell.n}", f"{cell.flip_rate:g}"),
            *(share(sum(one), OF_MANY) for one in zip(*map(_any, runs), strict=True)),
        )
        print(f"| {' | '.join(cells)} |")


def _any(tasks):
    """Return whether any task fails by classic, and fails or is proven alone and with Holm."""
    corrected = holm([p for *_, p in tasks])
    failed = [finding == "FAIL" for _, finding, _ in tasks]
    return (
        any(classic == "FAIL" for classic, *_ in tasks),
        any(failed),
        any(one and p <= ALPHA for one, p in zip(failed, corrected, strict=True)),
        any(p <= ALPHA for *_, p in tasks),
        any(p <= ALPHA for p in corrected),
    )


def main():
    show_one()
    show_eight()


ROUNDS = 100
SEED = 20261128
FLIP_RATE = 0.034
SETS = {"MMLU": (14_042, 0.7), "GSM8K": (1_319, 0.8)}
RULES = {"classic": classic.judge, "paired": paired.judge}
TRANSIENT = (0.001, 0.01, 0.05)
LOSES = (0.1, 0.4)
DROPS = (0.0, 1.5)
"""Drops of the faulty endpoint, in margins of the classic rule."""
POLICIES = {
    "0": RepairedPolicy(max_repaired=0.0),
    "default": RepairedPolicy(),
    "0.02": RepairedPolicy(max_repaired=0.02),
    "trust": RepairedPolicy(repaired="trust"),
}


class Answered(NamedTuple):
    """The first answers and those that came, as scores, and which samples were repaired."""

    first: FloatArray
    came: FloatArray
    lost: numpy.typing.NDArray[numpy.bool_]


def answer_with_errors(random, chances, rate):
    """Lose a random share of the first answers."""
    first = (random.random(len(chances)) < chances).astype(float)
    lost = random.random(len(chances)) < rate
    again = (random.random(len(chances)) < chances).astype(float)
    return Answered(first, numpy.where(lost, again, first), lost)


def answer_and_lose_wrong(random, chances, share):
    """Lose a share of the wrong answers, also of the retries, three times at most."""
    first = (random.random(len(chances)) < chances).astype(float)
    came, lost = first.copy(), numpy.zeros(len(chances), dtype=bool)
    for _ in range(3):
        gone = (came == 0.0) & (random.random(len(chances)) < share)
        lost |= gone
        came = numpy.where(gone, (random.random(len(chances)) < chances).astype(float), came)
    return Answered(first, came, lost)


def judge_repaired(rule, before, found):
    """Return the verdict that a run gives by each policy."""
    n, known = len(before), found.came[~found.lost]
    gone = int(found.lost.sum())
    value = 100.0 * float(found.came.mean())
    low = 100.0 * float(known.sum()) / n
    result = make_result(
        n, value, repaired=gone, doubted_bounds=(low, low + 100.0 * gone / n) if gone else None
    )
    reference = Reference(
        task="t", model="m", spec=AccuracySpec(), value=100.0 * float(before.mean())
    )
    of_rule = partial(RULES[rule], reference=reference, hypothesis=Hypothesis(num_samples=n))
    pairs = _pair(before, found.came) if rule == "paired" else None
    verdict = of_rule(result, pairs=pairs)
    if not gone:
        return dict.fromkeys(POLICIES, verdict)
    chance = repaired.measure_dependence(numpy.flatnonzero(found.lost).tolist(), before.tolist())
    fewer = _pair(before, numpy.where(found.lost, numpy.nan, found.came)) if pairs else None
    most = min(1.0, MAX_MISSING + gone / n)

    @cache
    def bounded():
        return of_rule(repaired.as_bounded(result), pairs=fewer, max_missing=most)

    doubt = repaired.doubt_of(result, chance)
    return {
        name: repaired.settle(verdict, bounded, doubt, policy, result)
        for name, policy in POLICIES.items()
    }


def _pair(before, after):
    return pair([before], [after], lo=0.0, hi=1.0, higher_is_better=True)


def _count(rule, data, ask, drop):
    """Return the outcomes by policy, and the means of the first answers and of those that came."""
    n, accuracy = SETS[data]
    counts = {name: Counter() for name in POLICIES}
    first, came = [], []
    for number in range(ROUNDS):
        random = numpy.random.default_rng([SEED, number])
        chances = endpoints(random, n, flip_rate=FLIP_RATE, accuracy=accuracy)
        before = (random.random(n) < chances).astype(float)
        margin = 1.645 * 50.0 * (2.0 / n) ** 0.5 / 100.0
        found = ask(random, chances * (1.0 - drop * margin / accuracy))
        first.append(float(found.first.mean() - before.mean()))
        came.append(float(found.came.mean() - before.mean()))
        for name, verdict in judge_repaired(rule, before, found).items():
            counts[name][verdict.outcome.value] += 1
    return counts, 100.0 * float(numpy.mean(first)), 100.0 * float(numpy.mean(came))


def tables():
    """Return both tables."""
    healthy = [
        "| data | rule | transient errors |" + "".join(f" {name} |" for name in POLICIES),
        "|---|---|--:|" + "--:|" * len(POLICIES),
    ]
    hidden = [
        "| data | rule | true drop, points | of the wrong answers lost | shown |"
        + "".join(f" {name} |" for name in POLICIES),
        "|---|---|--:|--:|--:|" + "--:|" * len(POLICIES),
    ]
    for data in SETS:
        for rule in RULES:
            for rate in TRANSIENT:
                ask = partial(answer_with_errors, rate=rate)
                counts, _, _ = _count(rule, data, ask, 0.0)
                told = "".join(f" {_share(c['INCONCLUSIVE'])} |" for c in counts.values())
                healthy.append(f"| {data} | {rule} | {100 * rate:g} % |{told}")
            for drop in DROPS:
                for lost in LOSES:
                    ask = partial(answer_and_lose_wrong, share=lost)
                    counts, true, shown = _count(rule, data, ask, drop)
                    told = "".join(
                        f" {_share(c['PASS'])} / {_share(c['FAIL'])} |" for c in counts.values()
                    )
                    hidden.append(
                        f"| {data} | {rule} | {-true:.2f} | {lost:.0%} | {shown:+.2f} |{told}"
                    )
    return "\n".join([*healthy, "", *hidden])


def _share(count):
    return f"{count / ROUNDS:.2f}"


def main_repaired():
    print(tables())
