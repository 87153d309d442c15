"""Measure levels and power for word error rates and BLEU: part of `make calibrate`.

The simulations are seeded; nothing is asserted. Figures are percentages of simulated comparisons;
square brackets hold the exact 95 % interval of the figure before them.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import numpy

from serve_eval.stats.bounds import bounds
from serve_eval.stats.clusters import pair_sums
from serve_eval.stats.drop import Method, drop_test
from serve_eval.stats.judgement import conclude
from serve_eval.tasks.covost2 import corpus_bleu
from tests.stats.calibrate_paired import interval

REPLICATES = 300
ALPHA = 0.05
MARGIN = 0.0271
"""Margin of the suite's test of 1842 utterances, as edits per word."""
WORDS, LONGEST, MOST = 24.0, 90, 128.0
Random = numpy.random.Generator


@dataclass(frozen=True, slots=True)
class Job:
    """Comparisons of two endpoints on `n` utterances of `speakers`, whose error rate is `rate`.

    A share `changed` of the utterances is answered anew by the second endpoint, the others alike. A
    share `heavy` of the utterances ends in a loop at times, with 100 edits. `missing` is the share
    of lost answers. A whole speaker is answered with more or fewer errors on the second endpoint by
    a factor of log-normal spread `accent`. `worse` multiplies all errors of the second endpoint.
    """

    name: str
    n: int
    speakers: int
    rate: float = 0.06
    changed: float = 0.3
    heavy: float = 0.0
    missing: float = 0.0
    accent: float = 0.0
    worse: float = 1.0
    alone: bool = False


LEVELS = (
    Job("WER 6 %", 1842, 100),
    Job("WER 2 %", 1842, 100, rate=0.02),
    Job("WER 2 %, 3 % of the answers change", 1842, 100, rate=0.02, changed=0.03),
    Job("WER 4 %, 300 utterances", 300, 60, rate=0.04),
    Job("20 speakers", 1842, 20),
    Job("20 speakers, accents", 1842, 20, accent=0.5),
    Job("the same, speakers ignored", 1842, 20, accent=0.5, alone=True),
    Job("100 speakers, accents", 1842, 100, accent=0.5),
    Job("the same, speakers ignored", 1842, 100, accent=0.5, alone=True),
    Job("10 speakers, accents", 1842, 10, accent=0.5),
    Job("5 speakers", 1842, 5),
    Job("1 % of utterances may loop", 1842, 100, heavy=0.01),
    Job("1 % of answers missing", 1842, 100, missing=0.01),
    Job("no answer changes", 1842, 100, changed=0.0),
    Job("32 utterances of 12 speakers", 32, 12),
)
POWERS = (
    Job("errors 5 % more", 1842, 100, worse=1.05),
    Job("errors 10 % more", 1842, 100, worse=1.1),
    Job("errors 20 % more", 1842, 100, worse=1.2),
    Job("errors 50 % more", 1842, 100, worse=1.5),
    Job("errors 50 % more, 32 utterances", 32, 12, worse=1.5),
)


def simulate(job, random):
    """Return the pairs of one comparison. Without `worse` both endpoints are exchangeable."""
    words = numpy.clip(random.poisson(WORDS, job.n) + random.integers(-15, 30, job.n), 3, LONGEST)
    speaker = numpy.arange(job.n) % job.speakers
    chances = numpy.clip(job.rate * random.lognormal(0.0, 0.8, job.n), 0.0, 0.8)

    def run(factor):
        edits = random.binomial(words, numpy.clip(chances * factor, 0.0, 0.9)).astype(float)
        edits[(random.random(job.n) < job.heavy) & (random.random(job.n) < 0.5)] += 100.0
        return edits

    before = run(random.lognormal(0.0, job.accent, job.speakers)[speaker])
    factor = job.worse * random.lognormal(0.0, job.accent, job.speakers)[speaker]
    after = run(factor)
    if not job.accent and job.worse == 1.0:
        after = numpy.where(random.random(job.n) < job.changed, after, before)
    after[random.random(job.n) < job.missing] = numpy.nan
    return pair_sums(
        [[before, words]],
        [[after, words]],
        lambda sums: sums[0] / sums[1],
        higher_is_better=False,
        limits=(MOST, 0.0),
        groups=() if job.alone else [str(one) for one in speaker.tolist()],
    )


def count(job, seed, replicates):
    """Return how often a drop is proven, also by the t test, and how often each finding comes."""
    random = numpy.random.default_rng(seed)
    found = {"proven": 0, "t": 0, "FAIL": 0, "PASS": 0, "INCONCLUSIVE": 0, "SMALL_DROP": 0}
    for _ in range(replicates):
        pairs = simulate(job, random)
        test, ends = drop_test(pairs), bounds(pairs, ALPHA)
        by_t = drop_test(pairs, Method.PAIRED_T).p
        finding, _ = conclude(
            pairs, test.p_range, ends, alpha=ALPHA, margin=MARGIN, max_missing=0.02
        )
        found["proven"] += test.p is not None and test.p <= ALPHA
        found["t"] += by_t is not None and by_t <= ALPHA
        found[finding.value] += 1
    return {name: times / replicates for name, times in found.items()}


# -------------------------------------------------------------------------------------------------
# BLEU


@dataclass(frozen=True, slots=True)
class Sentences:
    """Comparisons of translations of `n` sentences, whose tokens match with chance `quality`."""

    name: str
    n: int
    quality: float = 0.6
    shorter: float = 0.0
    worse: float = 0.0


BLEU_LEVELS = (
    Sentences("BLEU of some 30, 1000 sentences", 1000),
    Sentences("BLEU of some 60, 1000 sentences", 1000, quality=0.85),
    Sentences("BLEU of some 30, 200 sentences", 200),
    Sentences("answers shorter than the references", 1000, shorter=0.08),
)
BLEU_POWERS = (
    Sentences("1 % fewer tokens match", 1000, worse=0.01),
    Sentences("3 % fewer tokens match", 1000, worse=0.03),
)


def translate(job, random):
    """Return the counts of two endpoints: part and sentence."""
    wanted = random.integers(4, 25, job.n)
    easy = numpy.clip(random.normal(job.quality, 0.2, job.n), 0.05, 0.98)

    def run(less):
        lengths = numpy.maximum(
            1, numpy.round(wanted * random.normal(1.0 - job.shorter, 0.1, job.n))
        ).astype(int)
        places = numpy.arange(lengths.max())
        there = places < lengths[:, numpy.newaxis]
        hits = there & (random.random(there.shape) < (easy * (1.0 - less))[:, numpy.newaxis])
        counts = numpy.zeros((10, job.n))
        counts[0], counts[1] = lengths, wanted
        for n in range(4):
            counts[2 + n] = hits.sum(axis=1)
            counts[6 + n] = numpy.maximum(0, lengths - n)
            hits = hits[:, : hits.shape[1] - 1] & hits[:, 1:]
        return counts

    return run(0.0), run(job.worse)


def count_bleu(job, seed, replicates):
    """Return how often a drop is proven: as serve-eval does, and by recomputing BLEU."""
    random = numpy.random.default_rng(seed)
    found = {"proven": 0.0, "recomputed": 0.0, "apart": 0.0}
    for _ in range(replicates):
        before, after = translate(job, random)
        pairs = pair_sums([before], [after], corpus_bleu, higher_is_better=True)
        p, again = drop_test(pairs).p, randomise(before, after, random)
        found["proven"] += p <= ALPHA
        found["recomputed"] += again <= ALPHA
        found["apart"] += (p <= ALPHA) != (again <= ALPHA)
    return {name: times / replicates for name, times in found.items()}


def randomise(before, after, random, draws=1000):
    """Return p of approximate randomisation with BLEU computed again for every draw."""
    swapped = random.random((draws, before.shape[1])) < 0.5
    total = (before + after).sum(axis=1)
    ones = before.sum(axis=1) + swapped @ (after - before).T
    observed = corpus_bleu(after.sum(axis=1).tolist()) - corpus_bleu(before.sum(axis=1).tolist())
    drops = [corpus_bleu((total - one).tolist()) - corpus_bleu(one.tolist()) for one in ones]
    return float((1 + sum(drop <= observed for drop in drops)) / (draws + 1))


# -------------------------------------------------------------------------------------------------
# tables


def percent(share, replicates):
    """Return a share in percent with its exact interval."""
    low, high = interval(round(share * replicates), replicates)
    return f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _table(head, rows):
    print(f"| {' | '.join(head)} |\n|{'---|' * len(head)}")
    for row in rows:
        print(f"| {' | '.join(row)} |")
    print()


def _count_all(jobs, pool):
    futures = [pool.submit(count, job, seed, REPLICATES) for seed, job in enumerate(jobs)]
    yield from ((job, one.result()) for job, one in zip(jobs, futures, strict=True))


def main():
    start = time.monotonic()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        print(
            f"Word error rates of two endpoints that can be exchanged, {REPLICATES} comparisons"
            f" each, level {ALPHA:.0%}, margin {100 * MARGIN:.2f} points."
        )
        print("1842 utterances of 100 speakers, WER 6 % and 30 % changed answers if not named.\n")
        rows = []
        for job, one in _count_all(LEVELS, pool):
            shares = [percent(one[k], REPLICATES) for k in ("proven", "t", "FAIL")]
            others = [f"{100 * one[k]:.1f}" for k in ("PASS", "INCONCLUSIVE")]
            rows.append([job.name, *shares, *others])
        _table(("setting", "drop proven", "by t", "FAIL", "PASS", "INCONCLUSIVE"), rows)
        print("Power: the errors of the second endpoint are more, WER 6 % for the first.\n")
        kinds = ("proven", "FAIL", "SMALL_DROP", "PASS", "INCONCLUSIVE")
        _table(
            ("drop", *kinds),
            [
                [job.name, *(f"{100 * one[k]:.1f}" for k in kinds)]
                for job, one in _count_all(POWERS, pool)
            ],
        )
        fewer = REPLICATES // 4
        print(
            f"BLEU, {fewer} comparisons each: by the linear form, and by approximate randomisation"
            " that computes BLEU again for 1000 draws.\n"
        )
        both = (*BLEU_LEVELS, *BLEU_POWERS)
        futures = [pool.submit(count_bleu, job, seed, fewer) for seed, job in enumerate(both)]
        rows = []
        for sentences, future in zip(both, futures, strict=True):
            one = future.result()
            rows.append(
                [
                    sentences.name,
                    percent(one["proven"], fewer),
                    percent(one["recomputed"], fewer),
                    f"{100 * one['apart']:.1f}",
                ]
            )
        _table(("setting", "drop proven", "BLEU recomputed", "verdicts that differ"), rows)
    print(f"{time.monotonic() - start:.0f} s on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
