"""Pair the scores of two finished runs, prompt by prompt."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
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
    from serve_eval.stats.clusters import cluster_keys
    from serve_eval.stats.pairs import pair

    def runs(answers: TaskAnswers) -> list[list[float]]:
        return [
            [*(run[p].value if p in run else math.nan for p in prompts), *[math.nan] * unknown]
            for run in answers.lines
        ]

    metric = a.task.result.metric
    lo = -math.inf if metric.lo is None else metric.lo
    hi = math.inf if metric.hi is None else metric.hi
    return pair(
        runs(a),
        runs(b),
        lo=lo,
        hi=hi,
        higher_is_better=metric.higher_is_better,
        clusters=cluster_keys([*list_groups(prompts, a, b), *[""] * unknown]),
    )


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

    return pair_sums(
        runs(a),
        runs(b),
        sums.value,
        higher_is_better=a.task.result.metric.higher_is_better,
        limits=sums.limits,
        groups=[*list_groups(prompts, a, b), *[""] * unknown],
    )


def list_groups(prompts: Iterable[str], *sides: TaskAnswers) -> list[str]:
    """Return what each prompt shares with others, as the scores of the first side know it.

    Empty for a prompt that no side has a group of.
    """
    known = {
        prompt: line.group
        for side in reversed(sides)
        for lines in side.lines
        for prompt, line in lines.items()
        if line.group
    }
    return [known.get(prompt, "") for prompt in prompts]
