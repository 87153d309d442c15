"""Pair the scores of two finished runs on the prompts that both asked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from serve_eval.errors import NotComparableError
from serve_eval.evidence.answer_pairs import TaskAnswers
from serve_eval.schema import MEAN, Metric, Sums, TaskResult
from serve_eval.stats.intervals import bound_missing
from serve_eval.storage.prompts import KeptPrompt, has_prompts, read_prompts
from serve_eval.storage.scores import ScoreRecord

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


SAMPLES, SEED = "samples", "seed"
FORM = ("apply_chat_template", "system_prompt", "num_fewshot", "fewshot_as_multiturn", "thinking")
"""The fields of a fingerprint that change the text of all prompts."""
CHOICE = (SAMPLES, "shard", "samples_of_all_shards")
"""The fields of a fingerprint in which a subset differs from the whole."""


def list_mismatches(a: TaskAnswers, b: TaskAnswers) -> list[str]:
    """Return what forbids to pair two runs of a task, apart from their choice of samples.

    A sampling seed forbids nothing: it only draws other answers.
    """
    one, other = (side.task.fingerprint for side in (a, b))
    fields = [name for name in dict.fromkeys((*one, *other)) if one.get(name) != other.get(name)]
    facts = {
        "version": (a.task.version, b.task.version),
        "metric": (a.task.result.metric, b.task.result.metric),
        "aggregation": (a.task.result.aggregation, b.task.result.aggregation),
        "judge": tuple(sorted(judge.name for judge in side.task.judges) for side in (a, b)),
    }
    differing = [name for name, (first, second) in facts.items() if first != second]
    ignored = {*CHOICE, SEED}
    return list(dict.fromkeys(name for name in (*fields, *differing) if name not in ignored))


def keep_common(a: TaskAnswers, b: TaskAnswers) -> tuple[TaskAnswers, TaskAnswers, int]:
    """Return two runs with the prompts that both asked alone, and the number of these.

    A prompt is the same if its id, its text and its target are. Its text may differ if it was asked
    in another form, which the user allowed, and all prompts of one run have id and target in the
    other. An unanswered one counts, if the run folders keep the texts; without these, each
    unanswered prompt of either run counts, which can only widen an interval. Raises
    NotComparableError if the runs share no prompt, or if the value is no mean of scores.
    """
    if a.task.fingerprint.get(SAMPLES) == b.task.fingerprint.get(SAMPLES):
        return a, b, a.planned
    result = a.task.result
    if result.aggregation != MEAN.name:
        raise NotComparableError(
            f"{result.task}: the value is the {result.aggregation}, not the mean of the scores"
        )
    targets, others = _targets(a), _targets(b)
    kept, unknown = _match_texts(a, b), 0
    if not kept and _is_other_form(a, b) and _holds_all(targets, others):
        kept = None
    if kept is None:
        kept = {*targets} & {*others}
        unknown = sum(max(0, one.planned - len(_targets(one))) for one in (a, b))
    kept = {
        name
        for name in kept
        if name not in targets or name not in others or targets[name] == others[name]
    }
    if not kept & {*targets} & {*others}:
        raise NotComparableError(
            f"{result.task}: the two runs asked no common prompt",
            hint="Name runs that asked the same data.",
        )
    prompts = len(kept) + unknown
    return _restrict(a, kept, prompts), _restrict(b, kept, prompts), prompts


def keep_asked(a: TaskAnswers, b: TaskAnswers) -> tuple[TaskAnswers, TaskAnswers]:
    """Return two runs with the prompts alone that both asked, if a limit ended one of them.

    Both were asked in one random order, so that these prompts are a random part of all. Each of
    their repeats must have an answer or a failure.
    """
    if all(one.task.verdict.budget is None for one in (a, b)):
        return a, b
    kept = {*frozenset.intersection(*a.asked, *b.asked)}
    return _restrict(a, kept, len(kept)), _restrict(b, kept, len(kept))


def _is_other_form(a: TaskAnswers, b: TaskAnswers) -> bool:
    one, other = a.task.fingerprint, b.task.fingerprint
    return any(one.get(name) != other.get(name) for name in FORM)


def _holds_all(one: Mapping[str, str], other: Mapping[str, str]) -> bool:
    """Return True if all prompts of the smaller run have id and target in the other."""
    fewer, more = sorted((one, other), key=len)
    return bool(fewer) and all(more.get(name) == target for name, target in fewer.items())


def _targets(answers: TaskAnswers) -> dict[str, str]:
    return {name: line.target for lines in answers.lines for name, line in lines.items()}


def _match_texts(a: TaskAnswers, b: TaskAnswers) -> set[str] | None:
    """Return the ids of the prompts with the same text on both sides, or None without texts."""
    one, other = _texts(a), _texts(b)
    if one is None or other is None:
        return None
    return {name for name, asked in one.items() if name in other and other[name] == asked}


def _texts(answers: TaskAnswers) -> Mapping[str, KeptPrompt] | None:
    """Return the prompts of a run by id, or None if its folder does not keep all."""
    task = answers.task.result.task
    if not has_prompts(answers.folder, task):
        return None
    found = {one.id: one for one in read_prompts(answers.folder, task)}
    return found if len(found) >= answers.planned else None


def _restrict(answers: TaskAnswers, kept: set[str], prompts: int) -> TaskAnswers:
    lines = tuple(
        {name: line for name, line in lines.items() if name in kept} for lines in answers.lines
    )
    doubted = tuple(frozenset(one & kept) for one in answers.doubted)
    result = _sum_up(answers.task.result, lines, doubted, prompts * len(lines))
    part = replace(answers, task=replace(answers.task, result=result), lines=lines, doubted=doubted)
    if not result.cut or (right := with_cuts_right(part)) is None:
        return part
    bound = right.task.result
    result = replace(result, cut_value=bound.value, cut_bounds=bound.bounds)
    return replace(part, task=replace(part.task, result=result))


def _sum_up(
    whole: TaskResult,
    lines: Sequence[Mapping[str, ScoreRecord]],
    doubted: Sequence[frozenset[str]],
    planned: int,
) -> TaskResult:
    """Return a result with the figures of some prompts alone. What they do not give is left out."""
    scored = [line for run in lines for line in run.values()]
    known = [
        line
        for run, unknown in zip(lines, doubted, strict=True)
        for name, line in run.items()
        if name not in unknown
    ]
    metric = whole.metric
    return TaskResult(
        task=whole.task,
        metric=metric,
        planned=planned,
        scored=len(scored),
        failed=planned - len(scored),
        truncated=sum(line.truncated for line in scored),
        stopped_in_reasoning=0,
        outcomes=dict(Counter(str(line.outcome) for line in scored)),
        failures={},
        value=metric.scale * math.fsum(line.value for line in scored) / len(scored),
        bounds=_bound(metric, scored, planned),
        parts={},
        breakdown={},
        aggregation=whole.aggregation,
        repaired=sum(map(len, doubted)),
        cut=dict(Counter(str(line.cut) for line in scored if line.cut is not UNSET)),
        doubted_bounds=_bound(metric, known, planned),
    )


def _bound(
    metric: Metric, known: Sequence[ScoreRecord], planned: int
) -> tuple[float, float] | None:
    if metric.lo is None or metric.hi is None:
        return None
    total = math.fsum(line.value for line in known)
    low, high = bound_missing(total, len(known), planned, metric.lo, metric.hi)
    return metric.scale * low, metric.scale * high


def count_cut(answers: TaskAnswers) -> int:
    """Return how many answers of a run were cut off."""
    return sum(1 for _ in _list_cut(answers))


def with_cuts_right(answers: TaskAnswers) -> TaskAnswers | None:
    """Return a run with its value, bounds and scores if its cut answers were right.

    None if this says nothing: without a range, for a value that is no mean, and if answers can be
    partly right.
    """
    result, metric = answers.task.result, answers.task.result.metric
    lo, hi = metric.lo, metric.hi
    scored = [line for lines in answers.lines for line in lines.values()]
    if lo is None or hi is None or result.aggregation != MEAN.name or not scored:
        return None
    if any(line.value not in (lo, hi) for line in scored):
        return None
    best, cut = hi if metric.higher_is_better else lo, {*map(id, _list_cut(answers))}
    lines = tuple(
        {
            prompt: msgspec.structs.replace(line, value=best) if id(line) in cut else line
            for prompt, line in one.items()
        }
        for one in answers.lines
    )
    total = math.fsum(line.value for one in lines for line in one.values())
    bounds = bound_missing(total, len(scored), result.planned, lo, hi)
    result = replace(
        result,
        value=metric.scale * total / len(scored),
        bounds=(metric.scale * bounds[0], metric.scale * bounds[1]),
    )
    return replace(answers, task=replace(answers.task, result=result), lines=lines)


def _list_cut(answers: TaskAnswers) -> Iterator[ScoreRecord]:
    """Yield the scores of cut answers."""
    return (line for lines in answers.lines for line in lines.values() if line.cut is not UNSET)


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
    from serve_eval.stats.clusters import pair_sums

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
