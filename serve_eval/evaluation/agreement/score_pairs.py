"""Pair the scores of two finished runs, prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from serve_eval.evaluation.agreement.answer_pairs import TaskAnswers
from serve_eval.schema import Sums

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


def score_pairs(a: TaskAnswers, b: TaskAnswers, sums: Sums | None = None) -> Pairs:
    """Return the scores of all planned prompts; a prompt without a score counts as missing.

    `sums` are those that the value of the task depends on, if it is no mean of the scores. Raises
    ServeEvalError if no prompt has a score on both sides.
    """
    prompts = sorted({prompt for answers in (a, b) for lines in answers.lines for prompt in lines})
    unknown = max(0, max(a.planned, b.planned) - len(prompts))
    return (
        _pair_scores(a, b, prompts, unknown)
        if sums is None
        else _pair_sums(a, b, prompts, unknown, sums)
    )


def _pair_scores(a: TaskAnswers, b: TaskAnswers, prompts: Sequence[str], unknown: int) -> Pairs:
    from serve_eval.stats.pairs import pair

    def runs(answers: TaskAnswers) -> list[list[float]]:
        return [
            [*(run[p].value if p in run else math.nan for p in prompts), *[math.nan] * unknown]
            for run in answers.lines
        ]

    metric = a.task.result.metric
    lo = -math.inf if metric.lo is None else metric.lo
    hi = math.inf if metric.hi is None else metric.hi
    return pair(runs(a), runs(b), lo=lo, hi=hi, higher_is_better=metric.higher_is_better)


def _pair_sums(
    a: TaskAnswers, b: TaskAnswers, prompts: Sequence[str], unknown: int, sums: Sums
) -> Pairs:
    from serve_eval.stats.sums import pair_sums

    def runs(answers: TaskAnswers) -> list[list[list[float]]]:
        return [
            [
                [*(run[p].parts[part] if p in run else math.nan for p in prompts)]
                + [math.nan] * unknown
                for part in sums.parts
            ]
            for run in answers.lines
        ]

    lines = {prompt: line for one in (*a.lines, *b.lines) for prompt, line in one.items()}
    return pair_sums(
        runs(a),
        runs(b),
        sums.value,
        higher_is_better=a.task.result.metric.higher_is_better,
        limits=sums.limits,
        groups=[*(lines[prompt].group or "" for prompt in prompts), *[""] * unknown],
    )
