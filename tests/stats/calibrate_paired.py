"""Measure levels and power of the paired rules under attack: part of `make calibrate`.

The simulations are seeded; nothing is asserted.

Endpoints have difficulties, ties, correlations and missing answers that the tables of `calibrate`
do not have. Figures are percentages of simulated comparisons; square brackets hold the exact 95 %
interval of the figure before them. A figure whose interval is above its nominal level is bold, and
the last column says why.
"""

from __future__ import annotations

import math
import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy

from serve_eval.stats.betting import mean_lower_bound
from serve_eval.stats.bounds import noninferiority
from serve_eval.stats.classic import classic_test
from serve_eval.stats.drop import Method, drop_test
from serve_eval.stats.finding import PairedFinding
from serve_eval.stats.judgement import judge
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.paired_t import paired_t
from serve_eval.stats.pairs import pair
from serve_eval.stats.planning import compute_pairs, num_pairs_for
from tests.stats.simulation import altered, endpoints, run, shifted

REPLICATES = 2000
SUITES = 400
TESTS = 40
LEVELS = (0.05, 0.01, 0.00125)
"""Levels of one task, of a strict task, and of one among forty under Holm's correction."""
Random = numpy.random.Generator


# ------------------------------------------------------------------------------------------------------  # noqa: E501
# endpoints


def _all(chance):
    return lambda random, n: numpy.full(n, chance)


def _beta(a, b):
    return lambda random, n: random.beta(a, b, n)


def _mixture(flip_rate):
    return lambda random, n: endpoints(random, n, flip_rate=flip_rate)


SETTINGS = {
    "all .01": _all(0.01),
    "all .03": _all(0.03),
    "all .10": _all(0.10),
    "all .99": _all(0.99),
    "Beta(.5, 9.5)": _beta(0.5, 9.5),
    "Beta(1, 9)": _beta(1.0, 9.0),
    "Beta(.2, .1)": _beta(0.2, 0.1),
    "flip rate .034": _mixture(0.034),
    "flip rate .191": _mixture(0.191),
}


@dataclass(frozen=True, slots=True)
class Job:
    """Comparisons of `n` prompts with `before` reference runs and `after` runs of the candidate.

    `setting` names the chances of a right answer. `drop` is the share of all prompts by which the
    candidate is worse (`everywhere`: of every right answer). `altered` is the share that it answers
    differently for good, half of it right. `half` of the answers score one half, and `missing` of
    them are missing. `run_sd` is the spread of a shift of whole runs in logits. `texts` are graded
    like ROUGE.
    """

    setting: str
    n: int
    before: int = 3
    after: int = 1
    drop: float = 0.0
    everywhere: float = 0.0
    altered: float = 0.0
    half: float = 0.0
    missing: float = 0.0
    run_sd: float = 0.0
    texts: bool = False
    why: str = ""

    @property
    def name(self):
        """The setting in words."""
        more = [
            f"{self.everywhere:.0%} of the right answers lost" if self.everywhere else "",
            f"{100 * self.drop:.3g} points lost" if self.drop else "",
            f"{self.altered:.0%} altered for good" if self.altered else "",
            f"{self.half:.1%} half right" if self.half else "",
            f"{self.missing:.0%} missing" if self.missing else "",
            f"runs shift by sd {self.run_sd:g} logit" if self.run_sd else "",
        ]
        return ", ".join([self.setting, *filter(None, more)])


def draw(job, random):
    """Draw one comparison."""
    if job.texts:
        return _texts(job, random)
    before = SETTINGS[job.setting](random, job.n)
    changed = altered(random, before, to_wrong=job.drop + job.altered / 2, to_right=job.altered / 2)
    changed = changed * (1.0 - job.everywhere)
    reference = [run(random, shifted(random, before, job.run_sd)) for _ in range(job.before)]
    candidate = [run(random, shifted(random, changed, job.run_sd)) for _ in range(job.after)]
    for scores in (*reference, *candidate):
        scores[random.random(job.n) < job.half] = 0.5
    for scores in candidate:
        scores[random.random(job.n) < job.missing] = math.nan
    return pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)


def _texts(job, random):
    """Draw scores of texts; half change between two runs, and some are empty."""
    usual = random.beta(5.0, 8.0, job.n)

    def one(lower):
        noise = numpy.where(random.random(job.n) < 0.5, random.normal(0.0, 0.06, job.n), 0.0)
        scores = numpy.clip(usual + noise - lower, 0.0, 1.0)
        return numpy.where(random.random(job.n) < 0.002, 0.0, scores)

    lost = numpy.where(random.random(job.n) < 0.5, 2.0 * job.drop, 0.0)
    reference = [one(0.0) for _ in range(job.before)]
    candidate = [one(numpy.minimum(lost, usual)) for _ in range(job.after)]
    return pair(reference, candidate, lo=0.0, hi=1.0, higher_is_better=True)


LEVEL_JOBS = [
    *(Job("all .01", 100, k) for k in (1, 3, 10)),
    *(Job("all .03", 198, k) for k in (1, 3, 10)),
    *(Job("all .10", 30, k) for k in (1, 3, 10)),
    Job("all .10", 30, half=0.05),
    *(Job("Beta(.5, 9.5)", 30, k) for k in (3, 10)),
    *(Job("Beta(.2, .1)", 198, k) for k in (1, 3, 10)),
    *(Job("all .99", 198, k) for k in (3, 10)),
    *(Job("flip rate .034", n, 3) for n in (30, 100, 1319)),
    Job("flip rate .034", 1319, 3, 3),
    Job("flip rate .191", 198, 3, 3),
    Job("flip rate .034", 198, 3, missing=0.02),
    *(Job("ROUGE-like", n, 3, texts=True) for n in (30, 100, 512)),
    *(Job("flip rate .034", n, 3, altered=0.04) for n in (100, 198, 1319)),
    Job("flip rate .034", 198, 10, altered=0.04),
    Job("flip rate .034", 198, 3, 3, altered=0.04),
    *(
        Job("Beta(.2, .1)", n, k, run_sd=0.3, why="few runs show little of what moves whole runs")
        for n, k in ((198, 1), (198, 3), (198, 10), (1319, 1), (1319, 3), (1319, 10))
    ),
]
POWER_JOBS = [
    Job("flip rate .034", 1319, 1, drop=0.01),
    Job("flip rate .034", 1319, 3, drop=0.01),
    Job("flip rate .034", 1319, 10, drop=0.01),
    Job("flip rate .034", 198, 3, drop=0.04),
    Job("flip rate .191", 198, 3, drop=0.0625),
    Job("all .99", 198, 3, everywhere=0.03),
    Job("all .10", 198, 3, everywhere=0.5),
    Job("ROUGE-like", 512, 3, drop=0.005, texts=True),
]
MARGIN_JOBS = [
    *(Job("flip rate .034", 1319, 1, drop=0.01, half=half) for half in (0.0, 0.001, 0.02)),
    *(Job("flip rate .034", 1319, k, drop=0.01) for k in (3, 10)),
    Job("flip rate .034", 198, 3, drop=0.0827),
    Job("flip rate .191", 198, 3, drop=0.0827),
    Job("flip rate .034", 100, 3, drop=0.05),
    Job("ROUGE-like", 512, 1, drop=0.01, texts=True),
    Job("ROUGE-like", 512, 3, drop=0.01, texts=True),
]


# ----------------------------------------------------------------------------------------------------  # noqa: E501
# measurement


@dataclass(frozen=True, slots=True)
class Found:
    """Number of comparisons that prove a drop at each of LEVELS, by way to test.

    `of` is the number of comparisons, `fails` that of the verdict FAIL.
    """

    of: int
    proven: dict[str, tuple[int, ...]]
    fails: int


def measure(job):
    """Simulate the comparisons of a job; the result is always the same."""
    random = numpy.random.default_rng([*job.name.encode(), job.n, job.before, job.after])
    margin = -classic_test(job.n, 0.0, 50.0, LEVELS[0], 0.2).threshold / 100
    p = {"t": [], "exchange": [], "auto": [], "anchors": []}
    fails = 0
    for _ in range(REPLICATES):
        pairs = draw(job, random)
        told = judge(pairs, margin=margin, max_missing=1.0)
        fails += told.finding is PairedFinding.FAIL
        p["auto"].append(_p(told.test.p))
        p["anchors"].append(1.0 if told.anchors is None else _p(told.anchors.test.p))
        p["t"].append(_p(drop_test(pairs, Method.PAIRED_T).p))
        p["exchange"].append(_p(drop_test(pairs, Method.EXCHANGE).p))
    proven = {
        way: tuple(sum(one <= level for one in found) for level in LEVELS)
        for way, found in p.items()
    }
    return Found(REPLICATES, proven, fails)


def _p(p):
    return 1.0 if p is None else p


@dataclass(frozen=True, slots=True)
class Excluded:
    """Rates at which a drop of the margin is excluded, by the old bounds and by ours.

    The first number is for a true drop of the margin, the second for none.
    """

    of: int
    before: tuple[int, int]
    ours: tuple[int, int]


def exclude(job):
    """Simulate `job.drop` as the margin."""
    counts = []
    for lost in (job.drop, 0.0):
        here = Job(job.setting, job.n, job.before, drop=lost, half=job.half, texts=job.texts)
        random = numpy.random.default_rng(
            [*here.name.encode(), job.n, job.before, round(1e6 * job.drop)]
        )
        before = ours = 0
        for _ in range(REPLICATES):
            pairs = draw(here, random)
            before += _old_lower(pairs.differences) > -job.drop
            ours += noninferiority(pairs, job.drop, LEVELS[0]).holds
        counts.append((before, ours))
    (at_margin, ours_at_margin), (none, ours_none) = counts
    return Excluded(REPLICATES, (at_margin, none), (ours_at_margin, ours_none))


def _old_lower(differences):
    """Return the old bound: t from 30 changes on, else by betting."""
    if numpy.count_nonzero(differences) >= 30:
        return paired_t(differences).bounds(LEVELS[0])[0]
    return mean_lower_bound(differences, LEVELS[0])


SUITE_JOBS = {
    "40 of Beta(1, 9), n = 30": [Job("Beta(1, 9)", 30)] * 40,
    "10 of Beta(1, 9), n = 30; 30 of flip rate .034, n = 198": (
        [Job("Beta(1, 9)", 30)] * 10 + [Job("flip rate .034", 198)] * 30
    ),
    "40 of another build, 4% altered for good, n = 198": (
        [Job("flip rate .034", 198, altered=0.04)] * 40
    ),
}
WAYS = {"t": Method.PAIRED_T, "exchange": Method.EXCHANGE, "auto": Method.AUTO}


def suite(name, part):
    """Count suites of healthy endpoints in which Holm's correction leaves a proven drop.

    SUITES suites are simulated.
    """
    random = numpy.random.default_rng([*name.encode(), part])
    alarms = dict.fromkeys(WAYS, 0)
    for _ in range(SUITES):
        drawn = [draw(job, random) for job in SUITE_JOBS[name]]
        for way, method in WAYS.items():
            alarms[way] += (
                min(holm([_p(drop_test(pairs, method).p) for pairs in drawn])) <= LEVELS[0]
            )
    return alarms


# ---------------------------------------------------------------------------------------------------------  # noqa: E501
# tables


def interval(count, of):
    """Return the exact 95 % interval of a share (Clopper and Pearson 1934)."""
    from scipy.special import betaincinv

    low = 0.0 if count == 0 else float(betaincinv(count, of - count + 1, 0.025))
    high = 1.0 if count == of else float(betaincinv(count + 1, of - count, 0.975))
    return low, high


def beyond(count, of, level):
    """Return True if the whole interval is above the nominal level."""
    return interval(count, of)[0] > level


def share(count, of, level=None):
    """Format a percentage with its interval, in bold if it is above its level."""
    low, high = interval(count, of)
    text = f"{100 * count / of:.2f} [{100 * low:.2f}, {100 * high:.2f}]"
    return f"**{text}**" if level is not None and beyond(count, of, level) else text


def _plain(counts, of):
    return " / ".join(f"{100 * count / of:.1f}" for count in counts)


def table(header, rows):
    """Return a Markdown table whose first column is text."""
    lines = [header, ["---", *["--:"] * (len(header) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def level_table(jobs, found):
    """Return the table of false proofs of a drop."""
    rows = []
    for job, one in zip(jobs, found, strict=True):
        mine = one.proven["auto"]
        over = any(beyond(count, one.of, level) for count, level in zip(mine, LEVELS, strict=True))
        rows.append(
            [
                job.name,
                str(job.n),
                f"{job.before}, {job.after}",
                _plain(one.proven["t"], one.of),
                _plain(one.proven["exchange"], one.of),
                *(share(count, one.of, level) for count, level in zip(mine, LEVELS, strict=True)),
                _plain(one.proven["anchors"], one.of) if job.before > 1 else "-",
                f"{100 * one.fails / one.of:.1f}",
                (job.why or "by chance, or see the text") if over else "",
            ]
        )
    names = [f"p <= {100 * level:g} %" for level in LEVELS]
    header = [
        "endpoint",
        "n",
        "runs",
        "t before",
        "exchange alone",
        *names,
        "anchors",
        "FAIL",
        "beyond, since",
    ]
    return table(header, rows)


def power_table(jobs, found):
    """Return the table of proofs of a true drop."""
    ways = ("t", "auto", "exchange", "anchors")
    rows = [
        [job.name, str(job.n), f"{job.before}", *(_plain(one.proven[way], one.of) for way in ways)]
        for job, one in zip(jobs, found, strict=True)
    ]
    return table(
        ["endpoint", "n", "reference runs", "t before", "permutation", "exchange alone", "anchors"],
        rows,
    )


def margin_table(jobs, found):
    """Return the table of excluded margins."""
    rows = [
        [
            Job(job.setting, job.n, job.before, half=job.half).name,
            str(job.n),
            str(job.before),
            f"{100 * job.drop:.3g}",
            f"{100 * one.before[0] / one.of:.1f}",
            share(one.ours[0], one.of, LEVELS[0]),
            f"{100 * one.before[1] / one.of:.1f}",
            f"{100 * one.ours[1] / one.of:.1f}",
        ]
        for job, one in zip(jobs, found, strict=True)
    ]
    header = [
        "endpoint",
        "n",
        "reference runs",
        "margin, points",
        "drop = margin, before",
        "now",
        "no drop, before",
    ]
    return table([*header, "now"], rows)


def suite_table(found, of):
    """Return the table of false alarms among forty tests."""
    rows = [
        [name, *(share(counts[way], of, LEVELS[0] if way == "auto" else None) for way in WAYS)]
        for name, counts in found.items()
    ]
    return table(["suite of healthy endpoints", "t before", "exchange alone", "permutation"], rows)


def anchor_table():
    """Return the prompts for a power of .8 at level .01 and a loss of one point."""
    rows = [[f"{rate:.3f}", *map(str, anchor_sizes(rate))] for rate in (0.011, 0.034, 0.088)]
    header = [
        "flip rate",
        "one run",
        "permutation, 3 runs (formula)",
        "anchors of 3 runs",
        "of 5",
        "of 10",
    ]
    return table(header, rows)


def anchor_sizes(flip_rate, drop=0.01, alpha=0.01):
    """Return the sizes for one run, for the permutation test, and for anchors of K runs.

    One run and anchors are by exact sums, the permutation test by its normal approximation.

    An unsure prompt, right with a chance p uniform in 0..1, is an anchor that one run has wrong
    with probability E[p^(K - 1) (1 - p)] = 1 / (K (K + 1)). A share of 3 flip rates of all prompts
    is unsure.
    """
    three = compute_pairs(drop, flip_rate * (1 + 1 / 3) / 2 + drop, alpha, 0.2)
    anchors = [
        num_pairs_for(drop, 2 * 3 * flip_rate / (k * (k + 1)), alpha, 0.2) for k in (3, 5, 10)
    ]
    return [num_pairs_for(drop, flip_rate, alpha, 0.2), round(three), *anchors]


def tables(parts):
    """Return all measurements as Markdown."""
    return "\n\n".join(
        [
            (
                f"**No drop.** A drop is proven, in % of {REPLICATES} comparisons, at 5 / 1 / .125"
                " %; `runs` are those of the reference and of the candidate:"
            ),
            level_table(LEVEL_JOBS, parts["level"]),
            f"**A drop.** It is proven, in % of {REPLICATES} comparisons, at 5 / 1 / .125 %:",
            power_table(POWER_JOBS, parts["power"]),
            f"**The margin is excluded** at 5 %, in % of {REPLICATES} comparisons:",
            margin_table(MARGIN_JOBS, parts["margin"]),
            (
                f"**Suites of {TESTS} tests** under Holm's correction: any false alarm, in % of"
                f" {2 * SUITES} suites:"
            ),
            suite_table(parts["suite"], 2 * SUITES),
            "**Prompts for a power of 80 %** at level 1 %, when a point of stable prompts is lost:",
            anchor_table(),
        ]
    )


def main():
    began = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        suites = {
            name: [pool.submit(suite, name, part) for part in range(2)] for name in SUITE_JOBS
        }
        parts = {
            "level": list(pool.map(measure, LEVEL_JOBS)),
            "power": list(pool.map(measure, POWER_JOBS)),
            "margin": list(pool.map(exclude, MARGIN_JOBS)),
        }
        parts["suite"] = {
            name: {way: sum(part.result()[way] for part in both) for way in WAYS}
            for name, both in suites.items()
        }
    print(tables(parts))
    print(f"\n{time.monotonic() - began:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
