"""The data of the rule about slices: scores of both sides, and what is known of the samples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from serve_eval.errors import ServeEvalError
from serve_eval.evaluation.prepare import prepare
from serve_eval.evaluation.trust import adopt_code
from serve_eval.evidence.attribution import SUBJECT, kinds_of
from serve_eval.frozen import freeze
from serve_eval.schema import HOLDOUT, Dataset, Metric, Reference, Task
from serve_eval.stats.clusters import cluster_keys, number_keys
from serve_eval.storage.answer_origins import Served, read_traces
from serve_eval.verdicts.pairing import read_stored_runs
from serve_eval.verdicts.reference_samples import as_stored
from serve_eval.workflows.diagnose.candidates import KnownSamples, list_usable
from serve_eval.workflows.diagnose.course import count_in_flight
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, base_of
from serve_eval.workflows.diagnose.finding import AskedSample

Data = Mapping[str, tuple[Task, Dataset]]
"""The tasks with their data sets, by name."""
Scores = Mapping[str, tuple[float, ...]]
"""The scores of each prompt, by id and run; higher is better."""


@freeze
class PairedScores:
    """Prompts with scores on both sides: a tuple of scores per prompt and side.

    `worst` is the worst score. `clusters` has a number per prompt, the same for those that share a
    group (None: no two do).
    """

    asked: Sequence[AskedSample]
    before: Sequence[tuple[float, ...]]
    after: Sequence[tuple[float, ...]]
    worst: float
    clusters: Sequence[int] | None = None

    @property
    def lost(self) -> frozenset[int]:
        """The places of the prompts with a lower score than before."""
        pairs = zip(self.before, self.after, strict=True)
        return frozenset(i for i, (old, new) in enumerate(pairs) if _mean(new) < _mean(old))

    @property
    def gained(self) -> frozenset[int]:
        """The places of the prompts with a higher score than before."""
        pairs = zip(self.before, self.after, strict=True)
        return frozenset(i for i, (old, new) in enumerate(pairs) if _mean(new) > _mean(old))

    def take(self, places: Sequence[int]) -> PairedScores:
        """Return some of the prompts."""
        return replace(
            self,
            asked=[self.asked[i] for i in places],
            before=[self.before[i] for i in places],
            after=[self.after[i] for i in places],
            clusters=None if self.clusters is None else [self.clusters[i] for i in places],
        )

    def rows(self) -> tuple[list[list[float]], list[list[float]]]:
        """Return a row per run of each side.

        Of unequal numbers of runs, only the first one of the run itself is used.
        """
        old, new = (
            [list(row) for row in zip(*side, strict=True)] for side in (self.before, self.after)
        )
        return old, new if len(new) == len(old) else new[:1]

    def rights(self) -> tuple[list[bool], list[bool]]:
        """Return which prompts each side answered right in its first run.

        Of partial scores, those in the upper half are right.
        """
        best = max((max(one) for one in (*self.before, *self.after)), default=self.worst)
        least = (self.worst + best) / 2.0
        before, after = ([one[0] > least for one in side] for side in (self.before, self.after))
        return before, after


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)


def read_data(run: Evidence) -> Data:
    """Return the tasks whose data sets are on this machine; nothing is downloaded."""
    found = {}
    for spec in run.plan.tasks:
        plan = replace(run.plan, tasks=(spec,), no_reference=True, allow_hub=False)
        try:
            for one in prepare(adopt_code(plan, run.include_path)):
                found[one.task.name] = one.task, one.dataset
        except (ServeEvalError, OSError):
            continue
    return found


def pair_with_reference(task: TaskEvidence, data: Data) -> PairedScores | None:
    """Return the scores of a run and of its reference; None without scores per sample."""
    report = task.report
    if report is None or report.reference is None or task.name not in data:
        return None
    dataset, metric = data[task.name][1], report.result.metric
    if (stored := read_stored_runs(dataset, report.reference)) is None:
        return None
    runs, lo, hi = stored
    sign = _find_sign(metric, report.reference)
    before = {
        sample.id: tuple(sign * run[place] for run in runs)
        for place, sample in enumerate(dataset.samples)
    }
    after = {
        name: tuple(sign * as_stored(sign * score, lo, hi) for score in scores)
        for name, scores in _score_answers(task, metric, sign).items()
    }
    return _pair(task, before, after, min(sign * lo, sign * hi), data)


def pair_sides(a: TaskEvidence, b: TaskEvidence, data: Data) -> PairedScores | None:
    """Return the scores of the sides of a comparison; None if the metric is not known."""
    if a.report is None and a.name not in data:
        return None
    metric = data[a.name][0].metric if a.report is None else a.report.result.metric
    sign = _find_sign(metric)
    before, after = (_score_answers(side, metric, sign) for side in (a, b))
    ends = [sign * end for end in (metric.lo, metric.hi) if end is not None]
    least = min(
        (score for side in (before, after) for one in side.values() for score in one), default=0.0
    )
    return _pair(b, before, after, min(ends) if len(ends) == 2 else least, data)


def _find_sign(metric: Metric, reference: Reference | None = None) -> float:
    told = None if reference is None else reference.higher_is_better
    return 1.0 if (metric.higher_is_better if told is None else told) else -1.0


def _score_answers(task: TaskEvidence, metric: Metric, sign: float) -> Scores:
    """Return the scores of each prompt; a missing answer has the worst score.

    Leaves out prompts with answers that have no score, and missing ones of an unbounded metric.
    """
    worst = metric.lo if sign > 0.0 else metric.hi
    found: dict[str, list[float | None]] = {}
    for one in task.asked:
        score = worst if one.response is None else None if one.line is None else one.line.value
        found.setdefault(base_of(one.id) if task.repeats > 1 else one.id, []).append(score)
    shared: dict[tuple[float, ...], tuple[float, ...]] = {}
    return {
        name: shared.setdefault(
            known := tuple(sign * one for one in scores if one is not None), known
        )
        for name, scores in found.items()
        if None not in scores and len(scores) == task.repeats
    }


def _pair(
    task: TaskEvidence, before: Scores, after: Scores, worst: float, data: Data
) -> PairedScores:
    asked = [one for one in task.witnesses(task.asked) if one.id in before and one.id in after]
    return PairedScores(
        asked=asked,
        before=[before[one.id] for one in asked],
        after=[after[one.id] for one in asked],
        worst=worst,
        clusters=number_groups(task.name, asked, data),
    )


def number_groups(name: str, asked: Sequence[AskedSample], data: Data) -> list[int] | None:
    """Return a number per sample, the same for those that share a group; None if no two do.

    Samples without a score have their group from the data set, if it is known.
    """
    known = {s.id: s.group for s in data[name][1].samples} if name in data else {}
    names = [
        (one.line.group if one.line is not None else "") or known.get(one.id, "") for one in asked
    ]
    keys = cluster_keys(names)
    return None if keys is None else number_keys(keys).tolist()


def learn(
    run: Evidence,
    task: TaskEvidence,
    asked: Sequence[AskedSample],
    data: Data,
    other: TaskEvidence | None = None,
) -> KnownSamples:
    """Return what is known of samples; `other` tells lengths of prompts that have no answer."""
    lengths = list(map(_count_prompt, asked))
    if other is not None and None in lengths:
        told = {one.id: _count_prompt(one) for one in other.asked}
        lengths = [n or told.get(one.id) for n, one in zip(lengths, asked, strict=True)]
    served = (read_traces(run.folder) or {}).get(task.name, {})
    return KnownSamples(
        asked=asked,
        lengths=lengths,
        metadata=_read_metadata(task.name, asked, data),
        loads=_count_loads(run, asked),
        pairs=[_find_servers(one, served) for one in asked],
    )


def _count_prompt(one: AskedSample) -> int | None:
    """Return the tokens of a prompt. Samples with choices report those of several requests."""
    if one.response is None or one.response.choice_logprobs is not None:
        return None
    return one.response.usage.prompt_tokens or None


def _read_metadata(
    name: str, asked: Sequence[AskedSample], data: Data
) -> Mapping[str, Sequence[str | None]]:
    """Return the metadata that makes slices, and the task's own groups; not of hold-out samples."""
    if name not in data:
        return {}
    task, dataset = data[name]
    wanted = {one.id for one in asked}
    names, known = dict[str, None](), dict[str, Mapping[str, str]]()
    for sample in dataset.samples:
        if HOLDOUT not in sample.metadata:
            names.update(dict.fromkeys(sample.metadata))
            if sample.id in wanted:
                known[sample.id] = sample.metadata
    found: dict[str, list[str | None]] = {
        key: [known.get(one.id, {}).get(key) for one in asked] for key in names
    }
    if SUBJECT not in found:
        groups = kinds_of(task, dataset.samples).get(SUBJECT)
        if groups is not None:
            places = {sample.id: i for i, sample in enumerate(dataset.samples)}
            found[SUBJECT] = [
                None
                if (place := places.get(one.id)) is None or not one.shown
                else None
                if groups[place] is None
                else str(groups[place])
                for one in asked
            ]
    return list_usable(found)


def _count_loads(run: Evidence, asked: Sequence[AskedSample]) -> list[int | None]:
    sent = [one for one in asked if one.attempts]
    loads = iter(count_in_flight(run, sent))
    return [next(loads) if one.attempts else None for one in asked]


def _find_servers(
    one: AskedSample, served: Mapping[str, Sequence[Served]]
) -> tuple[str | None, str | None]:
    if one.attempts:
        for line in served.get(one.id, ()):
            if line.started_s == one.attempts[-1].start_s:
                return line.context, line.generation
        if (named := one.attempts[-1].servers) is not None:
            return named.context, named.generation
    return None, None
