"""This run's scores beside those of its reference's runs, prompt by prompt."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.errors import ReferenceFileError, ServeEvalError
from serve_eval.protocol.fingerprint import sample_key
from serve_eval.schema import MEAN, Dataset, Reference, Task
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.reference_samples import SampleScores

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


def on_these_prompts(
    task: Task, dataset: Dataset, reference: Reference
) -> tuple[Reference, str | None]:
    """Give the reference the value that its runs have on the prompts of `dataset`, and say so.

    A subset may be easier or harder than the whole: against the value of the whole its difficulty
    counts as a regression or hides one, while on the same prompts it cancels. The reference stays
    as it is where its scores per sample are not known, or not of all of these prompts, where its
    value is no mean of them, where the prompts are all that it has, and where an explicit threshold
    of the file stands for the computed one.
    """
    runs, asked = reference.runs, len(dataset.samples)
    if (
        runs is None
        or asked >= runs.n
        or task.aggregation is not MEAN
        or reference.threshold is not None
    ):
        return reference, None
    means, _ = reference_means(dataset, reference)
    if means is None:
        return reference, None
    value = task.metric.scale * (math.fsum(means) / asked)
    note = (
        f"reference {value:.2f} is that of these {asked} prompts ({reference.value:.2f} of all"
        f" {runs.n})"
    )
    return replace(reference, value=value), note


def reference_means(
    dataset: Dataset, reference: Reference
) -> tuple[array[float] | None, str | None]:
    """The mean score of each sample over the reference's runs, or None with the reason (None: it
    has no scores).

    Not where a score is missing: an early stop needs them all.
    """
    stored, places, why = _read_stored(dataset, reference)
    if stored is None:
        return None, why
    means = array(
        "d", (math.fsum(run[place] for run in stored.runs) / len(stored.runs) for place in places)
    )
    if any(map(math.isnan, means)):
        return None, "no pairs for the early stop: the reference lacks scores"
    return means, None


def with_reference(
    task: Task, dataset: Dataset, reference: Reference, runs: Sequence[array[float]]
) -> tuple[Pairs | None, str | None]:
    """The pairs, or None with the reason why there are none (and None where the reference has no
    scores at all).

    A subset is paired with the same prompts of the reference. Prompts that it does not know cannot
    be paired: one is enough to say that other data was asked. Nor is a value that is no mean of the
    scores: the mean of the differences would be that of something else.
    """
    if task.aggregation is not MEAN:
        known = reference.runs is not None
        return (
            None,
            (
                f"not paired with the reference: the value is the {task.aggregation.name}"
                if known
                else None
            ),
        )
    if all(math.isnan(score) for run in runs for score in run):
        return None, None
    stored, places, why = _read_stored(dataset, reference)
    if stored is None:
        return None, why
    from serve_eval.stats.pairs import pair
    from serve_eval.stats.run_effects import effect_of

    higher = (
        task.metric.higher_is_better
        if reference.higher_is_better is None
        else reference.higher_is_better
    )
    before = [[run[place] for place in places] for run in stored.runs]
    lo, hi = stored.lo, stored.hi
    now = [[reference_samples.as_stored(score, lo, hi) for score in run] for run in runs]
    try:
        pairs = pair(before, now, lo=lo, hi=hi, higher_is_better=higher)
    except ServeEvalError as error:
        return None, f"not paired with the reference: {error}"
    return replace(pairs, reference_effect=effect_of([list(run) for run in stored.runs])), None


def runs_differ(dataset: Dataset, reference: Reference) -> bool:
    """Test whether the reference's runs differ as a whole, so that errors have to be inflated for
    it.
    """
    from serve_eval.stats.run_effects import effect_of

    stored, _, _ = _read_stored(dataset, reference)
    effect = None if stored is None else effect_of([list(run) for run in stored.runs])
    return effect is not None and effect.inflation > 1.0


def read_stored_runs(
    dataset: Dataset, reference: Reference
) -> tuple[list[array[float]], float, float] | None:
    """Return the reference's runs over the samples of a data set, in its order, and the ends of the
    range of scores.

    None where the reference has no scores per sample, or does not know one of the samples.
    """
    stored, places, _ = _read_stored(dataset, reference)
    if stored is None:
        return None
    return (
        [array("d", (run[place] for place in places)) for run in stored.runs],
        stored.lo,
        stored.hi,
    )


def _read_stored(
    dataset: Dataset, reference: Reference
) -> tuple[SampleScores | None, Sequence[int], str | None]:
    """The reference's scores and the place of each sample in them, or None with the reason (None:
    there are none).
    """
    if reference.runs is None:
        return None, (), None
    path = Path(reference.file).parent / reference.runs.samples
    try:
        stored = reference_samples.read(path, reference.runs.sha256)
    except ReferenceFileError as error:
        return None, (), f"not paired with the reference: {error}"
    places = reference_samples.places(
        stored.keys, [sample_key(sample) for sample in dataset.samples]
    )
    known = [place for place in places if place is not None]
    if len(known) < len(places):
        unknown = len(places) - len(known)
        return (
            None,
            (),
            f"not paired with the reference: it does not know {unknown} of {len(places)} prompts",
        )
    return stored, known, None
