"""Simulate endpoints, and runs behind sticky, hashing or unlike loaded routers.

The functions are pure; the caller seeds them.

Prompts are a mixture: a share 3 * flip rate is right with a chance drawn uniformly from 0..1, the
others are always right or always wrong. Two draws of an unsure prompt differ with probability 1/3,
so that two runs of one endpoint disagree with the flip rate. Rows of an array are independent
endpoints, columns are prompts.

Returns the accused servers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy
from scipy.stats import beta

from serve_eval.evidence.attribution import SUBJECT, WRONG, AttributedAnswer, compare_workers
from serve_eval.evidence.attribution.latency import Timed
from serve_eval.schema import Metric
from serve_eval.stats.contingency import Cell, rows
from serve_eval.storage.answer_origins import Served
from serve_eval.verdicts.below_reference import estimate_expected

if TYPE_CHECKING:
    Shape = int | tuple[int, ...]


def endpoints(random, shape, *, flip_rate, accuracy=0.7):
    """Return the chance of a right answer per prompt, `accuracy` on average.

    Raises ValueError if no such mixture exists.
    """
    unsure = 3.0 * flip_rate
    if not (0.0 <= unsure <= 1.0 and unsure / 2.0 <= accuracy <= 1.0 - unsure / 2.0):
        raise ValueError(f"no mixture has the flip rate {flip_rate} and the accuracy {accuracy}")
    sure = (accuracy - unsure / 2.0) / (1.0 - unsure) if unsure < 1.0 else 0.0
    certain = (random.random(shape) < sure).astype(numpy.float64)
    return numpy.where(random.random(shape) < unsure, random.random(shape), certain)


def altered(
    random,
    chances,
    *,
    to_wrong=0.0,
    to_right=0.0,
):
    """Return an endpoint on which some answers differ for good.

    Of all prompts, a share `to_wrong` that was always right is now always wrong (a regression), and
    a share `to_right` the reverse. If both are equal, much changes and nothing gets worse.

    Raises ValueError if too few prompts are certain.
    """
    result = chances.copy()
    for share, now in ((to_wrong, 1.0), (to_right, 0.0)):
        certain = chances == now
        there = float(certain.mean())
        if share > there:
            raise ValueError(
                f"{share} of the prompts cannot be turned: {there} of them are certain"
            )
        if share:
            result[certain & (random.random(chances.shape) < share / there)] = 1.0 - now
    return result


def shifted(random, chances, sd):
    """Return the chances of one run that moves as a whole.

    All logits are shifted by one normal number of spread `sd`.
    """
    if not sd:
        return chances
    factor = numpy.exp(random.normal(0.0, sd))
    return chances * factor / (1.0 - chances + chances * factor)


def run(random, chances):
    """Draw one run: 1 for each prompt that was answered right, 0 for the others."""
    return (random.random(chances.shape) < chances).astype(numpy.float64)


def turned(reference, candidate):
    """Count per row the prompts that went from right to wrong and from wrong to right."""
    difference = candidate - reference
    return (difference < 0.0).sum(axis=-1), (difference > 0.0).sum(axis=-1)


def chance_below(n, down, up, limit):
    """Return P(number up - number down of n prompts < `limit`).

    A prompt goes down and up with these chances. Exact up to rounding: the n-th power of the
    characteristic function of one prompt.
    """
    size = 2 * n + 1
    one = numpy.zeros(size)
    one[[0, 1, -1]] = 1.0 - down - up, up, down
    chances = numpy.fft.ifft(numpy.fft.fft(one) ** n).real
    changes = numpy.fft.fftfreq(size, 1.0 / size)
    return float(chances[changes < limit].sum())


ALPHA, SERVERS, SUBJECTS = 0.01, 4, 20
UNSTEADY = 0.1
"""Share of the prompts with a random chance of a right answer, in a subject of 75 %.

Two runs disagree on 3.4 % of the prompts.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Facts about the prompts that the attribution knows.

    `place`: prompts of a subject are neighbours in the data set. `subject`: the task reports the
    subject. `runs`: number of runs of the reference.
    """

    place: bool = False
    subject: bool = False
    runs: int = 0


@dataclass(frozen=True, slots=True)
class Accused:
    """Servers that are accused by their wrong answers.

    `before`: by all prompts at once; `now`: by the current method. `dealt_by`: what the router's
    choice was seen to depend on.
    """

    before: frozenset[str]
    now: frozenset[str]
    dealt_by: tuple[str, ...]


def played(
    random,
    sticky,
    known,
    *,
    worse=0.0,
    answers=400,
):
    """Simulate a run of that many `answers` on one context and four generation servers.

    The share `sticky` of the requests goes to the server of their subject, the rest at random.
    Server g1 turns the share `worse` of its right answers wrong. Subjects are right in 75 % +- 15
    %; hard ones have more unsteady prompts.
    """
    subject = numpy.arange(answers) * SUBJECTS // answers
    if not known.place:
        subject = random.permutation(subject)
    right = numpy.clip(random.normal(0.75, 0.15, SUBJECTS), 0.2, 0.98)
    chance = (random.random(answers) < right[subject]).astype(float)
    unsteady = (
        random.random(answers) < numpy.clip(UNSTEADY * (1.0 - right) / 0.25, 0.0, 0.9)[subject]
    )
    chance[unsteady] = random.random(int(unsteady.sum()))
    home = random.integers(SERVERS, size=SUBJECTS)
    stuck = random.random(answers) < sticky
    server = numpy.where(stuck, home[subject], random.integers(SERVERS, size=answers))
    values = (random.random(answers) < chance) & ~((server == 1) & (random.random(answers) < worse))
    runs = [(random.random(answers) < chance).astype(float).tolist() for _ in range(known.runs)]
    lines = [
        Served(task="t", id="", started_s=0.0, context="c0", generation=f"g{name}", how="times")
        for name in range(SERVERS)
    ]
    measures, dealt_by = compare_workers(
        [
            AttributedAnswer(lines[server[i]], i, float(values[i]), empty=False, response=None)
            for i in range(answers)
        ],
        Metric(),
        estimate_expected(runs, lo=0.0, hi=1.0, higher_is_better=True),
        answers,
        lambda places: (
            {SUBJECT: [int(subject[place]) for place in places]} if known.subject else {}
        ),
    )
    sums = [
        Cell("c0", f"g{name}", int((server == name).sum()), int((~values[server == name]).sum()))
        for name in range(SERVERS)
    ]
    return Accused(_accused(sums), _accused(measures[WRONG]), dealt_by)


def _accused(cells):
    return frozenset(row.worker[0] for row in rows({WRONG: cells}, ALPHA) if row.accused)


def interval(hits, of, level=0.95):
    """Return the exact interval of a probability (Clopper and Pearson 1934)."""
    tail = (1.0 - level) / 2.0
    low = float(beta.ppf(tail, hits, of - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(1.0 - tail, hits + 1, of - hits)) if hits < of else 1.0


ALPHA_REPEATED_ROUTER = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Routed:
    """A deployment and its router.

    Each of `prompts` prompts is asked `repeats` times. The share `hashed` of the requests goes to
    the generation server of their prompt, the rest at random by `shares`. The context server is
    drawn for each request. `steady`: a server repeats its answer to a prompt.
    """

    prompts: int = 200
    repeats: int = 1
    contexts: int = 1
    shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    hashed: float = 1.0
    steady: bool = False


def accused(random, setting, *, worse=0.0):
    """Return the workers that are accused if answers are permuted, and if prompts are.

    A prompt is answered right with a chance of its own, from Beta(.5, .5). Server g1 turns the
    share `worse` of its right answers wrong.
    """
    n, repeats, servers = setting.prompts, setting.repeats, len(setting.shares)
    chance = random.beta(0.5, 0.5, n)
    prompt = numpy.tile(numpy.arange(n), repeats)
    home = random.choice(servers, size=n, p=setting.shares)
    drawn = random.choice(servers, size=n * repeats, p=setting.shares)
    server = numpy.where(random.random(n * repeats) < setting.hashed, home[prompt], drawn)
    context = random.integers(setting.contexts, size=n * repeats)
    draws = random.random((n, servers))[prompt, server] if setting.steady else None
    values = (random.random(n * repeats) if draws is None else draws) < chance[prompt]
    hits = random.random((n, servers))[prompt, server] if setting.steady else None
    values &= ~((server == 1) & ((random.random(n * repeats) if hits is None else hits) < worse))
    lines = [
        [
            Served(task="t", id="", started_s=0.0, context=f"c{c}", generation=f"g{g}", how="times")
            for g in range(servers)
        ]
        for c in range(setting.contexts)
    ]
    answers = [
        AttributedAnswer(
            lines[context[i]][server[i]], i, float(values[i]), empty=False, response=None
        )
        for i in range(n * repeats)
    ]
    measures, _ = compare_workers(answers, Metric(), None, n, lambda places: {})
    return _name(_count(answers)), _name(measures[WRONG])


def _count(answers):
    """Return the sums of all answers, as if repeats were independent."""
    sums = {}
    for one in answers:
        cell = sums.setdefault((one.line.context, one.line.generation), [0, 0])
        cell[0] += 1
        cell[1] += one.value == 0.0
    return [Cell(*workers, n, bad) for workers, (n, bad) in sums.items()]


def _name(cells):
    return frozenset(
        "+".join(row.worker) for row in rows({WRONG: cells}, ALPHA_REPEATED_ROUTER) if row.accused
    )


SHORT, LONG, ANSWER = 200, 4000, 50
"""Tokens of prompts and of an answer. A generated token takes as long as ten of a prompt."""
IN_FLIGHT = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedLoadedServers:
    """A deployment of generation servers, and the work that each of them gets.

    Requests are dealt by `shares`. Of `prompts` (None: all are different), each goes to the server
    that its hash names. Long prompts, `long` of all, stick to server g0 if `sticky`, and so do all
    prompts that are not in a prefix cache if `cached`. A server works on all its requests at once,
    which share its speed, or on one after the other if `queued`. Server g1 is `slower` than others.
    Work varies by a log-normal factor of standard deviation `spread`.
    """

    shares: tuple[float, ...] = (0.25, 0.25, 0.25, 0.25)
    answers: int = 400
    prompts: int | None = None
    long: float = 0.0
    sticky: bool = False
    cached: bool = False
    queued: bool = False
    slower: float = 1.0
    spread: float = 0.5


def serve(random, setting):
    """Return the times of all answers of a run that keeps IN_FLIGHT requests in flight."""
    n, servers = setting.answers, len(setting.shares)
    prompts = setting.prompts or n
    prompt = numpy.arange(n) % prompts
    home = random.choice(servers, size=prompts, p=setting.shares)
    is_long = random.random(prompts) < setting.long
    if setting.sticky:
        home = numpy.where(is_long, 0, random.integers(1, servers, size=prompts))
    computed = numpy.where(is_long, LONG, SHORT)
    if setting.cached:
        computed = numpy.where(home == 0, SHORT, SHORT // 10)
    hard = numpy.exp(setting.spread * random.standard_normal(prompts))
    work = (computed[prompt] / 10 + ANSWER) * hard[prompt]
    work *= numpy.exp(0.2 * random.standard_normal(n))
    server = home[prompt]
    speed = numpy.where(numpy.arange(servers) == 1, 1.0 / setting.slower, 1.0)
    taken, started = _pass(server, work / 1000, speed, queued=setting.queued)
    return [
        Timed(
            "c0",
            f"g{server[i]}",
            f"{prompt[i]}",
            float(taken[i]),
            ANSWER,
            int(computed[prompt[i]]),
            float(started[i]),
        )
        for i in range(n)
    ]


def _pass(server, work, speed, *, queued):
    """Return the seconds that each request takes, and its start."""
    n, now = len(server), 0.0
    taken, started, left = numpy.zeros(n), numpy.zeros(n), work.astype(float).copy()
    at = [[] for _ in speed]
    sent = 0
    while True:
        while sent < n and sum(map(len, at)) < IN_FLIGHT:
            at[server[sent]].append(sent)
            started[sent] = now
            sent += 1
        ends = []
        for place, here in enumerate(at):
            if here:
                done = here[0] if queued else min(here, key=lambda i: left[i])
                pace = speed[place] if queued else speed[place] / len(here)
                ends.append((left[done] / pace, place, done))
        if not ends:
            return taken, started
        step, where, first = min(ends)
        for place, here in enumerate(at):
            for i in here[:1] if queued else here:
                left[i] -= step * speed[place] / (1 if queued else len(here))
        now += step
        taken[first] = now - started[first]
        at[where].remove(first)
