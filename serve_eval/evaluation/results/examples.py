"""Find what a reader of a result sees first: a wrong answer, and the slices of the run before."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from serve_eval.evaluation.results.sample_table import OUTCOME_CODES, SampleTable
from serve_eval.schema import Dataset, Outcome, Reference, Task, WrongExample
from serve_eval.storage.scores import find_score
from serve_eval.verdicts.pairing import read_stored_runs


def break_down_reference(
    task: Task, dataset: Dataset, reference: Reference | None
) -> tuple[Mapping[str, object], Sequence[float]]:
    """Return the breakdown of the reference's scores on these prompts, and these scores.

    A score is the mean over the reference's runs, NaN if one is missing. Both are empty if they are
    not known.
    """
    stored = None if reference is None else read_stored_runs(dataset, reference)
    if stored is None:
        return {}, ()
    runs = stored[0]
    means = [math.fsum(scores) / len(runs) for scores in zip(*runs, strict=True)]
    known = (
        (sample, mean)
        for sample, mean in zip(dataset.samples, means, strict=True)
        if not math.isnan(mean)
    )
    try:
        return task.breakdown(known), means
    except Exception:  # a task's own function; the result names the errors that it makes
        return {}, means


def pick_example(
    folder: Path, table: SampleTable, reference: Sequence[float]
) -> WrongExample | None:
    """Return a wrong answer, if there is one: the first of those that the reference had right.

    Otherwise the first wrong one, or the first from which nothing was extracted. `reference` has
    the reference's score of each prompt, or is empty.
    """
    sample = _pick(table, reference)
    found = None if sample is None else find_score(folder, table.task.name, sample)
    if found is None:
        return None
    return WrongExample(id=found.id, answer=found.answer, target=found.target)


def _pick(table: SampleTable, reference: Sequence[float]) -> str | None:
    metric = table.task.metric
    best = metric.hi if metric.higher_is_better else metric.lo
    for outcome in (Outcome.WRONG, Outcome.UNPARSED):
        code = OUTCOME_CODES[outcome]
        places = [i for i, one in enumerate(table.outcomes) if one == code]
        lost = (i for i in places if i < len(reference) and reference[i] == best)
        if (i := next(lost, next(iter(places), None))) is not None:
            return table.samples[i].id
    return None


def name_target(target: str) -> str:
    """Return the answer in a target, which may be a worked solution that ends in `#### ANSWER`."""
    return target.rpartition("####")[2].strip()


def order_ids(name: str) -> tuple[tuple[int, str], ...]:
    """Return a sort key of an id, with its numbers by value: test-9 comes before test-10."""
    pieces = re.split(r"([0-9]{1,18})", name)
    return tuple((int(one), "") if i % 2 else (-1, one) for i, one in enumerate(pieces))
