"""Simulate runs that ask each prompt several times, behind a router that may hash the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy

from serve_eval.evidence.attribution.bad_workers import WRONG, AttributedAnswer, compare_workers
from serve_eval.schema import Metric
from serve_eval.stats.contingency import Cell, rows
from serve_eval.storage.records.answer_origins import Served

ALPHA = 0.01


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


def accused(
    random: numpy.random.Generator, setting: Routed, *, worse: float = 0.0
) -> tuple[frozenset[str], frozenset[str]]:
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


def _count(answers: Sequence[AttributedAnswer]) -> list[Cell]:
    """Return the sums of all answers, as if repeats were independent."""
    sums: dict[tuple[str | None, str | None], list[int]] = {}
    for one in answers:
        cell = sums.setdefault((one.line.context, one.line.generation), [0, 0])
        cell[0] += 1
        cell[1] += one.value == 0.0
    return [Cell(*workers, n, bad) for workers, (n, bad) in sums.items()]


def _name(cells: Sequence[Cell]) -> frozenset[str]:
    return frozenset("+".join(row.worker) for row in rows({WRONG: cells}, ALPHA) if row.accused)
