"""Name the part of the samples in which score is lost.

With the scores of a reference, or of side A of a comparison, every slice is tested. Without them,
only slices that a healthy server does not tie to how hard a prompt is.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from serve_eval.schema import Outcome
from serve_eval.workflows.diagnose import candidates
from serve_eval.workflows.diagnose.breakdown import name_good
from serve_eval.workflows.diagnose.candidates import KnownSamples, Slice, reduce_modulus
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence
from serve_eval.workflows.diagnose.finding import (
    BETWEEN_SHARE,
    OVERRULED,
    PLACE,
    AskedSample,
    Finding,
)
from serve_eval.workflows.diagnose.slice_data import (
    Data,
    PairedScores,
    learn,
    number_groups,
    pair_sides,
    pair_with_reference,
    read_data,
)
from serve_eval.workflows.diagnose.slice_words import report_slice

if TYPE_CHECKING:
    from serve_eval.stats.largest_statistic import FoundSlice


PROMPT_LEVEL, ANSWER_LEVEL = 0.0015, 0.0005
"""Levels of slices of prompts and of answers, shared by all tasks of a run or a comparison."""
MOST_SAMPLES = 50_000
"""Number of samples that are examined; of more, as many are drawn."""
DRAWS, MOST_DRAWS = 2999, 20_000
"""Draws for a run of one task, and the largest number of draws."""
CYCLES = 4
"""Number of blocks that have to fit between the quartiles of the lengths without a reference."""
_ENDS = ("truncated", "cuts", "unclosed_reasoning", "stopped_in_reasoning", "misfiled")
COVERED = {
    candidates.LOAD: {"concurrency"},
    candidates.WORKER: {"worker"},
    candidates.PAIR: {"worker"},
    candidates.PLACE: {"drift", "server_errors", "worker_gone"},
    candidates.STOP: {*_ENDS, "stop_string"},
    candidates.ANSWER_LENGTH: {*_ENDS, "empty", "lengths"},
}
"""Rules that say more about a kind of slice. Such a slice is not named in addition."""
SERVING = {
    candidates.WORKER,
    candidates.PAIR,
    candidates.CACHED,
    candidates.RESIDUE,
    candidates.LOAD,
    candidates.PLACE,
    candidates.STREAM,
}
"""Slices by how the requests were served. Such a slice says where, and another rule how."""


def find_slices(run: Evidence, found: Collection[Finding], data: Data | None) -> Iterator[Finding]:
    """Yield a finding for each task whose score is lost in a slice of its samples.

    `found` has the findings of other rules. `data` are the data sets, if they are already read.
    """
    tasks = [task for task in run.tasks if task.lost]
    data = read_data(run) if data is None and tasks else data or {}
    for task in tasks:
        covered = _list_covered(task, found)
        if (scores := pair_with_reference(task, data)) is not None:
            count, share = len(run.tasks), run.share
            named = _find_paired(run, task, scores, data, covered, tasks=count, share=share)
            fell = [scores.asked[i] for i in scores.lost]
        else:
            named, fell = _find_alone(run, task, data, covered), task.lost
        yield from (one for kind, one in named if _adds(kind, one, task, fell, found))


def compare_slices(
    a: Evidence, b: Evidence, found: Collection[Finding], data: Data | None = None
) -> Iterator[Finding]:
    """Yield a finding for each task in which B loses score against A in a slice of the samples."""
    others = {task.name: task for task in a.tasks}
    tasks = [task for task in b.tasks if task.name in others and task.lost]
    data = read_data(b) if data is None and tasks else data or {}
    for task in tasks:
        covered, other = _list_covered(task, found), others[task.name]
        if (scores := pair_sides(other, task, data)) is not None:
            named = _find_paired(
                b,
                task,
                scores,
                data,
                covered,
                other=other,
                tasks=len(b.tasks),
                share=BETWEEN_SHARE,
                good=name_good(a),
            )
            fell = [scores.asked[i] for i in scores.lost]
            yield from (one for kind, one in named if _adds(kind, one, task, fell, found))


def _list_covered(task: TaskEvidence, found: Collection[Finding]) -> set[str]:
    """Return the kinds of slices about which other rules have said more."""
    rules = {one.rule for one in found if one.task in (None, task.name)}
    return {kind for kind, others in COVERED.items() if rules & others}


def _adds(
    kind: str,
    one: Finding,
    task: TaskEvidence,
    fell: Collection[AskedSample],
    found: Collection[Finding],
) -> bool:
    """Return True for a slice that says more than the other findings about a task.

    If they explain its loss, no other cause is likelier, and only a slice by how requests were
    served that has nearly all of the loss says where. A sign of damage leaves open what is damaged.
    """
    if not is_explained(task, fell, found, by_signs=True):
        return True
    if one.rather:
        return False
    most = kind in SERVING and one.count >= EXPLAINED * one.of
    return most or not is_explained(task, fell, found)


def _find_paired(
    run: Evidence,
    task: TaskEvidence,
    scores: PairedScores,
    data: Data,
    covered: Collection[str],
    *,
    tasks: int,
    share: float,
    other: TaskEvidence | None = None,
    good: str = "GOOD",
) -> Iterator[tuple[str, Finding]]:
    """Yield the kind and the finding of the slice in which score is lost.

    It is lost against the reference, or against side A. Slices that other rules cover are tested
    too, so that no other slice has to stand for them.
    """
    from serve_eval.stats.largest_statistic import LEAST_PROMPTS, tabulate
    from serve_eval.stats.losses import is_like_another
    from serve_eval.stats.slices import find_answer_slice, find_paired_slice

    scores = scores.take(_draw_places(len(scores.asked)))
    if not scores.lost or len(scores.asked) < LEAST_PROMPTS:
        return
    asked, worst, draws = scores.asked, scores.worst, _count_draws(share / tasks)
    known = learn(run, task, asked, data, other)
    slices = candidates.list_prompt_slices(known)
    before, after = scores.rows()
    named = find_paired_slice(
        before,
        after,
        tabulate((one.inside for one in slices), len(asked)),
        level=PROMPT_LEVEL * share / tasks,
        worst=worst,
        clusters=scores.clusters,
        draws=draws,
    )
    one = None if named is None else slices[named.place]
    if named is not None and one is not None:
        one, named = _reduce(one, named, known, scores)
    if named is None and other is not None and len(before) == len(after) == 1:
        pairs = candidates.list_answer_slices(asked, _order_as(asked, other))
        tables = [tabulate((pair[side].inside for pair in pairs), len(asked)) for side in (1, 0)]
        level = ANSWER_LEVEL * share / tasks
        named = find_answer_slice(
            before,
            after,
            (tables[0], tables[1]),
            level=level,
            worst=worst,
            clusters=scores.clusters,
            draws=draws,
        )
        one = None if named is None else pairs[named.place][0]
    if named is not None and one is not None and one.kind not in covered:
        leads = not is_like_another(*scores.rights())
        yield (
            one.kind,
            report_slice(run, task, one, named, asked, scores.lost, leads=leads, good=good),
        )


def _reduce(
    one: Slice, named: FoundSlice, known: KnownSamples, scores: PairedScores
) -> tuple[Slice, FoundSlice]:
    """Return a slice by a rest with the smallest modulus that explains it, and its counts."""
    smaller = reduce_modulus(one, known.lengths, scores.lost)
    if smaller is one:
        return one, named
    inside = smaller.inside
    lost, gained = (sum(bool(inside[i]) for i in places) for places in (scores.lost, scores.gained))
    return smaller, replace(named, lost=lost, gained=gained)


def _find_alone(
    run: Evidence, task: TaskEvidence, data: Data, covered: Collection[str]
) -> Iterator[tuple[str, Finding]]:
    """Yield the kind and the finding of the slice with more wrong or missing samples."""
    from serve_eval.stats.largest_statistic import LEAST_PROMPTS, tabulate
    from serve_eval.stats.slices import find_unpaired_slice

    every = task.witnesses(task.asked)
    if len(every) < LEAST_PROMPTS:
        return
    asked = [every[i] for i in _draw_places(len(every))]
    known = learn(run, task, asked, data)
    kinds = _list_testable(run, task)
    slices = candidates.list_prompt_slices(known, _find_largest_block(known))
    slices = [one for one in slices if one.kind in kinds]
    named = find_unpaired_slice(
        [one.lost for one in asked],
        tabulate((one.inside for one in slices), len(asked)),
        _stratify(known),
        level=PROMPT_LEVEL * task.share,
        clusters=number_groups(task.name, asked, data),
        draws=_count_draws(task.share),
    )
    if named is not None and (one := slices[named.place]).kind not in covered:
        lost = [i for i, sample in enumerate(asked) if sample.lost]
        one = reduce_modulus(one, known.lengths, lost)
        named = replace(named, lost=sum(bool(one.inside[i]) for i in lost))
        yield one.kind, report_slice(run, task, one, named, asked, None)


def _list_testable(run: Evidence, task: TaskEvidence) -> set[str]:
    """Return the kinds of slices that are tested without a reference.

    In an order that is not random, time and load may come with the difficulty of the prompts. The
    attribution of a report has tested the workers.
    """
    kinds = {candidates.RESIDUE}
    if run.in_random_order:
        kinds |= {candidates.LOAD, candidates.PLACE, candidates.CACHED}
        if task.report is None or task.report.attribution is None:
            kinds |= {candidates.WORKER, candidates.PAIR}
    return kinds


def _find_largest_block(known: KnownSamples) -> int:
    """Return the largest block that fits several times between short and long prompts.

    The length modulo a larger one would be another word for the length.
    """
    lengths = sorted(length for length in known.lengths if length is not None)
    quarter = len(lengths) // 4
    return (lengths[-quarter - 1] - lengths[quarter]) // CYCLES if quarter else 0


def _stratify(known: KnownSamples) -> list[int]:
    """Return a number for each sample: its group by metadata, and the third of its length."""
    groups = next(iter(known.metadata.values()), [None] * len(known.asked))
    lengths = sorted(length for length in known.lengths if length is not None)
    ends = [lengths[len(lengths) * third // 3] for third in (1, 2)] if lengths else []
    strata = [
        (group, None if length is None else bisect_right(ends, length))
        for group, length in zip(groups, known.lengths, strict=True)
    ]
    numbers = {stratum: number for number, stratum in enumerate(dict.fromkeys(strata))}
    return [numbers[stratum] for stratum in strata]


def _order_as(asked: Sequence[AskedSample], other: TaskEvidence) -> list[AskedSample]:
    """Return the same samples of another run, in the same order."""
    by_id = {one.id: one for one in other.asked}
    return [by_id[one.id] for one in asked]


def _count_draws(share: float) -> int:
    """Return the number of draws by which that share of the level can be reached."""
    return min(MOST_DRAWS, math.ceil(DRAWS / share))


def _draw_places(n: int) -> list[int]:
    """Return the places of the samples to examine, in order."""
    if n <= MOST_SAMPLES:
        return list(range(n))
    return sorted(random.Random("slices").sample(range(n), MOST_SAMPLES))


EXPLAINED = 0.9
"""Share of the lost answers that other findings have to explain."""
WHOLE = {"other_model", "protocol", "data", "unsupported", OVERRULED}
"""Rules about everything that was asked: a fault of this kind may spoil any answer."""
SIGNS = {"unreadable", "looping", "unlike", "lengths", "signs", "first_token", PLACE}
"""Rules that describe damaged answers, and not what damaged them."""


def _is_cut(one: AskedSample) -> bool:
    return one.response is not None and one.response.truncated


def _is_thought(one: AskedSample) -> bool:
    stopped = one.response is not None and one.response.stopped_in_reasoning
    return stopped or one.outcome == Outcome.REASONING_ONLY


def _is_stopped(one: AskedSample) -> bool:
    return one.response is not None and one.response.stop_reason is not None


SHOWN_BY: Mapping[str, Callable[[AskedSample], bool]] = {
    "truncated": _is_cut,
    "cuts": _is_cut,
    "unclosed_reasoning": _is_thought,
    "stopped_in_reasoning": _is_thought,
    "misfiled": _is_thought,
    "stop_string": _is_stopped,
    "empty": lambda one: one.outcome == Outcome.EMPTY,
    "unreadable": lambda one: one.outcome == Outcome.UNPARSED,
}
"""The test by which an answer is one of those that a rule has named."""


def is_explained(
    task: TaskEvidence,
    fell: Collection[AskedSample],
    found: Iterable[Finding],
    *,
    by_signs: bool = False,
) -> bool:
    """Return True if `found` explains nearly all answers of a task that `fell`.

    These have a lower score than before; without a reference, they are wrong or missing. A missing
    answer is explained by its message. A finding about a sign that as many answers of the reference
    have explains none. Signs of damage explain answers only if `by_signs`. Answers of rules without
    a sign per answer are compared with all lost ones of the task, by number.
    """
    own = [one for one in found if one.task in (None, task.name) and not one.is_remark]
    own = [one for one in own if by_signs or one.rule not in SIGNS]
    if any(one.rule in WHOLE for one in own):
        return True
    if any((one.explains or 0) >= EXPLAINED * len(task.lost) for one in own):
        return True
    tests = [SHOWN_BY[one.rule] for one in own if one.rule in SHOWN_BY]
    covered = sum(one.failure is not None or any(test(one) for test in tests) for one in fell)
    return covered >= EXPLAINED * len(fell) > 0
