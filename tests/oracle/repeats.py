"""Compare avg@k, its standard error, pass@k and the vote with those of other tools.

The answers are made up: 16 to each of 30 questions, some of them without a result. lm-eval is in
the environment of the comparisons; evalscope and inspect_ai are too large for it, and are compared
if they are installed.
"""

from __future__ import annotations

import importlib
import math
import random
from collections import Counter
from dataclasses import dataclass

from serve_eval.stats.repeats import majority, pass_at, standard_error
from tests.oracle.part import Compared

QUESTIONS, REPEATS = 30, 16
KS = (1, 2, 4, 8, 16)


@dataclass(frozen=True)
class Answer:
    """The result that was found in an answer (None: none), and whether it is right."""

    found: str | None
    right: bool


def make_answers():
    """Return the answers by question. Chances are often near 0 or 1, as those of models are."""
    rng = random.Random("repeats")
    chances = [rng.betavariate(0.8, 0.4) for _ in range(QUESTIONS)]
    return [[_draw(rng, chance) for _ in range(REPEATS)] for chance in chances]


def _draw(rng, chance):
    if rng.random() < 0.03:
        return Answer(None, right=False)
    if rng.random() < chance:
        return Answer("7", right=True)
    return Answer(rng.choice(["3", "77", "912"]), right=False)


def compare():
    """Compare with each tool that is installed."""
    table = make_answers()
    parts = {
        "lm_eval": _with_lm_eval,
        "evalscope": _with_evalscope,
        "inspect_ai": _with_inspect,
    }
    results = []
    for name, part in parts.items():
        compared = Compared(what=f"repeats, against {name}")
        try:
            part(table, compared)
        except ModuleNotFoundError as error:
            compared.notes.append(f"not compared: {error}")
        results.append(compared)
    return results


def _means(table):
    return [math.fsum(one.right for one in answers) / len(answers) for answers in table]


def _value(table):
    return math.fsum(_means(table)) / len(table)


def _error(table):
    found = standard_error(_means(table))
    assert found is not None
    return found


def _pass_at(table, k):
    return pass_at([sum(one.right for one in answers) for answers in table], REPEATS, k).value


def _vote(table):
    found = majority([(one.found, float(one.right)) for one in answers] for answers in table)
    return found.value


def _untied(table):
    """Return the questions whose most frequent result is not shared, so that all tools agree."""
    return [
        answers
        for answers in table
        for (_, most), *rest in [Counter(one.found for one in answers if one.found).most_common(2)]
        if not rest or rest[0][1] < most
    ]


def _note(compared, figures):
    said = ", ".join(f"{name} {100.0 * value:.3f}" for name, value in figures.items())
    compared.notes.append(f"all {QUESTIONS} questions x {REPEATS}: {said}")


def _with_lm_eval(table, compared):
    selection = importlib.import_module("lm_eval.filters.selection")
    metrics = importlib.import_module("lm_eval.api.metrics")
    ours = _error(table)
    compared.add_number("standard error by question", ours, metrics.mean_stderr(_means(table)))

    def vote(some):
        texts = [[one.found or "[invalid]" for one in answers] for answers in some]
        filters = (selection.TakeKFilter(k=REPEATS), selection.MajorityVoteFilter())
        for one in (*filters, selection.TakeFirstFilter()):
            texts = list(one.apply(texts, some))
        return float(metrics.mean([float(text == "7") for text in texts]))

    readable = [answers for answers in _untied(table) if all(one.found for one in answers)]
    compared.add_number("vote, without ties and lost results", _vote(readable), vote(readable))
    first = [float(answers[0].right) for answers in table]
    _note(compared, {
        "avg@16": _value(table), "standard error": ours, "maj@16": _vote(table),
        "their take_first": metrics.mean(first), "its stderr": metrics.mean_stderr(first),
        "their majority_vote": vote(table),
    })  # fmt: skip


def _with_evalscope(table, compared):
    api = importlib.import_module("evalscope.api.metric")
    theirs = importlib.import_module("evalscope.metrics.aggregators.aggregators")

    def scores(some):
        return [
            api.SampleScore(
                score=api.Score(
                    value={"acc": float(one.right)}, extracted_prediction=one.found, prediction=""
                ),
                sample_id=f"{i}-{j}", group_id=i, generation_index=j,
            )
            for i, answers in enumerate(some) for j, one in enumerate(answers)
        ]  # fmt: skip

    passes = {
        one.dimensions["k"]: one.score
        for one in theirs.MeanPassAtK()(scores(table))
        if one.dimensions
    }

    def vote(some):
        found = theirs.MeanVoteAtK()(scores(some))
        return float(next(o.score for o in found if (o.dimensions or {}).get("k") == REPEATS))

    [mean] = theirs.Mean()(scores(table))
    compared.add_number("mean", _value(table), mean.score)
    for k in KS:
        compared.add_number(f"pass@{k}", _pass_at(table, k), passes[k])
    compared.add_number("vote, without ties", _vote(_untied(table)), vote(_untied(table)))
    _note(compared, {"mean": mean.score, "pass@4": passes[4], "vote_at_k": vote(table)})


def _with_inspect(table, compared):
    scorer = importlib.import_module("inspect_ai.scorer")

    def reduce(reducer, metric):
        reduced = [
            reducer([scorer.Score(value=float(one.right), answer=one.found) for one in answers])
            for answers in table
        ]
        return float(metric([scorer.SampleScore(score=one) for one in reduced]))

    mean, error = (reduce(scorer.mean_score(), one) for one in (scorer.mean(), scorer.stderr()))
    compared.add_number("mean", _value(table), mean)
    compared.add_number("standard error by question", _error(table), error)
    for k in KS:
        theirs = reduce(scorer.pass_at(k), scorer.mean())
        compared.add_number(f"pass@{k}", _pass_at(table, k), theirs)
    _note(compared, {
        "mean": mean, "stderr": error, "pass_at(4)": reduce(scorer.pass_at(4), scorer.mean()),
        "mode": reduce(scorer.mode_score(), scorer.mean()),
        "at_least(8)": reduce(scorer.at_least(8), scorer.mean()),
    })  # fmt: skip
