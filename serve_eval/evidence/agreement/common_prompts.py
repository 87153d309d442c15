"""Restrict two finished runs to the prompts that both asked, such as a subset and the whole."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from msgspec import UNSET

from serve_eval.errors import NotComparableError
from serve_eval.evidence.agreement.answer_pairs import TaskAnswers
from serve_eval.evidence.agreement.cut_right import with_cuts_right
from serve_eval.protocol.fingerprint import without_scorer_options
from serve_eval.schema import MEAN, Metric, TaskResult
from serve_eval.stats.missing import bound_missing
from serve_eval.storage.records.prompts import KeptPrompt, has_prompts, read_prompts
from serve_eval.storage.records.scores import ScoreRecord

SAMPLES, SEED = "samples", "seed"
FORM = ("apply_chat_template", "system_prompt", "num_fewshot", "fewshot_as_multiturn", "thinking")
"""The fields of a fingerprint that change the text of all prompts."""
CHOICE = (SAMPLES, "shard", "samples_of_all_shards")
"""The fields of a fingerprint in which a subset differs from the whole."""


def list_mismatches(a: TaskAnswers, b: TaskAnswers) -> list[str]:
    """Return what forbids to pair two runs of a task, apart from their choice of samples.

    A sampling seed forbids nothing: it only draws other answers.
    """
    one, other = (without_scorer_options(side.task.fingerprint) for side in (a, b))
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
