"""Measure how often two sound endpoints are accused by their answers to recorded requests.

Runs of flip models are drawn, and the test of `compare --requests` judges them. Damaged pairs show
its power. Part of `make calibrate`; seeded, printed, never asserted.
"""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass

import numpy

from serve_eval.stats.distances import farther_in_each, rank_distances
from serve_eval.workflows.compare.changed import ALPHA, cut_all
from tests.stats.simulation import interval

PAIRS, DAMAGED_PAIRS = 2000, 200
"""Pairs of a cell, and of one with damage."""
FEWER = 4
"""Pairs of a cell with 1,000 requests are so many times fewer."""
SIZES = (50, 100, 300, 1000)
RUNS = 4
"""Answers to a request: two of A, then two of B."""
LABELS = 999
"""Drawn labels, a tenth of those of a comparison: the level is exact with any number."""
IN_BATCH, IN_GROUP = 16, 5
"""Requests of a batch, and those with one body or of one conversation."""


@dataclass(frozen=True, slots=True)
class Answers:
    """The answers of four runs: which of its texts each request got, and what they share.

    `said` has a number by request and run, and `places` those of a request in the order in which a
    run was answered. Requests of one of the `groups` have one body, or are turns of a conversation.
    """

    said: numpy.ndarray
    places: numpy.ndarray
    groups: numpy.ndarray


def draw_places(random, n):
    """Return the order of each run: A and B are asked in step, their second runs in another one."""
    first, second = random.permutation(n), random.permutation(n)
    return numpy.stack([first, second, first, second], axis=1)


def own_each(random, n, flips):
    """Draw each answer for itself. `flips` is the share of requests on which two runs differ."""
    near = random.random((n, 1)) < 2 * flips
    said = near * random.integers(2, size=(n, RUNS))
    return Answers(said, draw_places(random, n), numpy.arange(n))


def by_temperature(random, n, flips):
    """Draw texts of which few are equal, most of all on hard requests."""
    mode = random.beta(2.0, 2.0 * flips, size=(n, 1))
    found = numpy.where(
        random.random((n, RUNS)) < mode, 0, random.integers(1, 1000, size=(n, RUNS))
    )
    return Answers(found, draw_places(random, n), numpy.arange(n))


def by_group(random, n, flips, size):
    """Let all near ties of a body, or of a conversation, fall the same way in a run."""
    cluster = numpy.arange(n) // size
    near = (random.random(n) < 2 * flips)[cluster]
    drawn = random.integers(2, size=(n, RUNS))[cluster]
    return Answers(near[:, None] * drawn, draw_places(random, n), cluster)


def by_batch(random, n, flips):
    """Let all near ties of a batch fall the same way, as its kernels have it."""
    near = random.random(n) < 2 * flips
    places = draw_places(random, n)
    said = numpy.stack(
        [random.integers(2, size=n)[places[:, run] // IN_BATCH] for run in range(RUNS)], axis=1
    )
    return Answers(near[:, None] * said, places, numpy.arange(n))


def by_worker(random, n, flips):
    """Let two workers of each endpoint take turns; one of them has an order of its own per batch.

    Both runs of an endpoint are answered at the same time, and share its batches.
    """
    near = random.random(n) < 2 * flips
    places = draw_places(random, n)
    said = numpy.zeros((n, RUNS), dtype=int)
    for runs in ((0, 1), (2, 3)):
        behind = places[:, runs] + random.normal(0.0, 4.0, size=(n, 2))
        turn = behind.ravel().argsort().argsort().reshape(n, 2)
        state = random.integers(2, size=2 * n)[turn // (2 * IN_BATCH)]
        said[:, runs] = numpy.where(turn % 2, state, 0)
    return Answers(near[:, None] * said, places, numpy.arange(n))


WORLDS = {
    "no flips": lambda random, n: own_each(random, n, 0.0),
    "flips .5 %": lambda random, n: own_each(random, n, 0.005),
    "flips 4 %": lambda random, n: own_each(random, n, 0.04),
    "temperature .8, texts 30 %": lambda random, n: by_temperature(random, n, 0.5),
    "temperature .8, texts 50 %": lambda random, n: by_temperature(random, n, 1.0),
    "five equal requests, or turns, flip together": lambda r, n: by_group(r, n, 0.04, IN_GROUP),
    "batches of 16 flip together": lambda random, n: by_batch(random, n, 0.04),
    "half of all requests are near ties, in batches": lambda r, n: by_batch(r, n, 0.25),
    "one of two workers flips, in batches": lambda random, n: by_worker(random, n, 0.08),
}
"""Sound pairs by name."""


def damage(random, answers, share):
    """Give a share of the requests another answer of B for good."""
    said = answers.said.copy()
    said[random.random(len(said)) < share, 2:] += 5000
    return Answers(said, answers.places, answers.groups)


def measure(random, answers, *, dependent=False):
    """Return ranked distances by measure: texts, and lengths that two of three other texts change.

    If dependent, a length follows from the text, so that both are the same.
    """
    said, salt = answers.said, random.integers(1, 1 << 30, size=(len(answers.said), 1))
    apart = said[:, :, None] != said[:, None, :]
    if dependent:
        return numpy.stack([rank_distances(apart)] * 2)
    places = 1.0 + (said * 7919 + salt) % 97
    texts = apart / numpy.minimum(places[:, :, None], places[:, None, :])
    tokens = (said * 104729 + salt) % 3
    lengths = numpy.abs(tokens[:, :, None] - tokens[:, None, :])
    return numpy.stack([rank_distances(texts), rank_distances(lengths)])


def count_accused(world, n, pairs, *, share=0.0, dependent=False, once=False):
    """Return how many pairs of a world are accused, by groups alone and as the comparison does.

    `share` of the requests are damaged. `once`: B, or a finished A, answered once.
    """
    random = numpy.random.default_rng([n, round(1000 * share), sum(map(ord, world))])
    accused = [0, 0]
    for _ in range(pairs):
        answers = WORLDS[world](random, n)
        if share:
            answers = damage(random, answers, share)
        measured = measure(random, answers, dependent=dependent)
        if once:
            measured = measured[:, :, :3, :3]
        blocks = cut_all(answers.places[:, :2].T.tolist())
        for place, units in enumerate(([], blocks)):
            found = farther_in_each(measured, 2, [answers.groups, *units], draws=LABELS)
            accused[place] += found.p <= ALPHA
    return accused


def told(accused, pairs):
    """Format a share in percent with its exact interval; one above the level is marked."""
    low, high = interval(accused, pairs)
    text = f"{100 * accused / pairs:.1f} ({100 * low:.1f} to {100 * high:.1f})"
    return f"**{text}**: above" if low > ALPHA else text


def list_jobs():
    """Return the sound pairs: every world by size, and the special forms of some."""
    jobs = [(world, n, {}) for world in WORLDS for n in SIZES]
    for world in ("flips 4 %", "temperature .8, texts 30 %"):
        jobs += [(world, 300, {"dependent": True}), (world, 300, {"once": True})]
    return jobs


SHARES = (0.03, 0.05, 0.1, 0.2)
"""Shares of the requests that damage gives another text; int4 weights change .2."""
NAMED = {"dependent": ", two equal measures", "once": ", one side asked once"}


def tables(pool=map):
    """Return the tables."""
    jobs = list_jobs()
    sizes = [PAIRS // (FEWER if n == max(SIZES) else 1) for _, n, _ in jobs]
    found = pool(_run, [(*job, pairs) for job, pairs in zip(jobs, sizes, strict=True)])
    lines = [
        "| sound pairs | requests | pairs | accused, % | without blocks, % |",
        "|---|---|---|---|---|",
    ]
    for (world, n, more), pairs, (alone, all_of) in zip(jobs, sizes, found, strict=True):
        name = world + "".join(NAMED[one] for one in more)
        lines.append(f"| {name} | {n} | {pairs} | {told(all_of, pairs)} | {told(alone, pairs)} |")
    damaged = [
        (world, n, {"share": share}, DAMAGED_PAIRS)
        for world in ("flips 4 %", "temperature .8, texts 30 %")
        for n in (100, 300)
        for share in SHARES
    ]
    lines += ["", "| damaged pairs | requests | texts changed, % | found, % |", "|---|---|---|---|"]
    for (world, n, more, pairs), (_, hit) in zip(damaged, pool(_run, damaged), strict=True):
        low, high = interval(hit, pairs)
        lines.append(
            f"| {world} | {n} | {100 * more['share']:g} |"
            f" {100 * hit / pairs:.0f} ({100 * low:.0f} to {100 * high:.0f}) |"
        )
    return "\n".join(lines)


def _run(job):
    world, n, more, pairs = job
    return count_accused(world, n, pairs, **more)


def main():
    """Print the tables, from two processes."""
    began = time.monotonic()
    with multiprocessing.Pool(2) as pool:
        print(tables(pool.map))
    print(f"{time.monotonic() - began:.0f} s on 2 cores")


if __name__ == "__main__":
    main()
