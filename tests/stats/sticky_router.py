"""Simulate runs behind a router that sends prompts of one subject to one server.

Returns the accused servers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy
from scipy.stats import beta

from serve_eval.evidence.attribution.bad_workers import (
    SUBJECT,
    WRONG,
    AttributedAnswer,
    compare_workers,
)
from serve_eval.schema import Metric
from serve_eval.stats.contingency import Cell, rows
from serve_eval.storage.records.answer_origins import Served
from serve_eval.verdicts.below_reference import estimate_expected

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
    random: numpy.random.Generator,
    sticky: float,
    known: Setting,
    *,
    worse: float = 0.0,
    answers: int = 400,
) -> Accused:
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


def _accused(cells: Sequence[Cell]) -> frozenset[str]:
    return frozenset(row.worker[0] for row in rows({WRONG: cells}, ALPHA) if row.accused)


def interval(hits: int, of: int, level: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a probability (Clopper and Pearson 1934)."""
    tail = (1.0 - level) / 2.0
    low = float(beta.ppf(tail, hits, of - hits + 1)) if hits else 0.0
    return low, float(beta.ppf(1.0 - tail, hits + 1, of - hits)) if hits < of else 1.0
