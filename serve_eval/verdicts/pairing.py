"""Pair this run's scores with those of its reference's runs, prompt by prompt."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval.errors import ReferenceFileError, ServeEvalError
from serve_eval.protocol.sampling_fields import SCORER_OPTIONS, sample_key
from serve_eval.schema import Dataset, Metric, Reference, Sums, Task
from serve_eval.verdicts import reference_samples
from serve_eval.verdicts.reference_samples import SampleScores, StoredAnswers

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


UNPAIRED = "not paired with the reference"
"""The words with which a note begins that says why there are no pairs."""


def on_these_prompts(
    task: Task, dataset: Dataset, reference: Reference
) -> tuple[Reference, str | None]:
    """Return the reference with its value on the prompts of `dataset`, and a note about it.

    A subset may be easier or harder than the whole. Compared with the value of the whole, its
    difficulty looks like a regression or hides one; on the same prompts it cancels. The reference
    is returned unchanged if its scores per sample are not known for all of these prompts, if its
    value is neither their mean nor depends on sums, if it has no other prompts, or if its file sets
    an explicit threshold.
    """
    runs, asked = reference.runs, len(dataset.samples)
    if (
        runs is None
        or asked >= runs.n
        or not task.aggregation.paired
        or reference.threshold is not None
    ):
        return reference, None
    found = _value_on(task, dataset, reference)
    if found is None:
        return reference, None
    value = task.metric.scale * found
    note = (
        f"the reference has {value:.2f} on these {asked} prompts, and {reference.value:.2f} on all"
        f" {runs.n}"
    )
    return replace(reference, value=value), note


def _value_on(task: Task, dataset: Dataset, reference: Reference) -> float | None:
    """Return the value of the reference on the prompts of a data set, before the scale."""
    if (sums := task.aggregation.sums) is None:
        means, _ = reference_means(dataset, reference)
        return None if means is None else math.fsum(means) / len(means)
    stored, places, _ = _read_stored(dataset, reference)
    if stored is None or not set(sums.parts) <= set(stored.parts):
        return None
    return sums.value(
        [
            math.fsum(run[place] for run in stored.parts[part] for place in places)
            for part in sums.parts
        ]
    )


def reference_means(
    dataset: Dataset, reference: Reference
) -> tuple[array[float] | None, str | None]:
    """Return each sample's mean score over the reference's runs, or None with the reason.

    The reason is None if the reference has no scores per sample. There are no means if any score is
    missing: an early stop needs them all.
    """
    stored, places, why = _read_stored(dataset, reference)
    if stored is None:
        return None, why
    means = array(
        "d", (math.fsum(run[place] for run in stored.runs) / len(stored.runs) for place in places)
    )
    if any(map(math.isnan, means)):
        return None, "no pairs for the early stop: scores of the reference are missing"
    return means, None


def with_reference(
    task: Task,
    dataset: Dataset,
    reference: Reference,
    runs: Sequence[array[float]],
    parts: Sequence[Sequence[array[float]]] = (),
    *,
    cuts_right: bool = False,
) -> tuple[Pairs | None, str | None]:
    """Return the pairs, or None with the reason.

    The reason is None if the reference has no scores per sample or the run has no scores. `parts`
    are those of each run that a value depends on that is no mean. With `cuts_right` the answers of
    the reference that were cut off count as right, as in `reference_cuts`.

    A subset is paired with the same prompts of the reference. A single prompt that the reference
    does not know prevents pairing: it shows that the run used other data. A value that neither is
    the mean of the scores nor depends on sums prevents it as well: the mean of the differences
    would measure something else.
    """
    if not task.aggregation.paired:
        known = reference.runs is not None
        return (
            None,
            (
                f"{UNPAIRED}: the value is the {task.aggregation.name}, not the mean of the scores"
                if known
                else None
            ),
        )
    if all(math.isnan(score) for run in runs for score in run):
        return None, None
    stored, places, why = _read_stored(dataset, reference)
    if stored is None:
        return None, why
    from serve_eval.stats.clusters import cluster_keys
    from serve_eval.stats.pairs import pair
    from serve_eval.stats.repeats import effect_of

    higher = is_higher_better(task.metric, reference)
    if (sums := task.aggregation.sums) is not None:
        return _pair_sums(sums, dataset, stored, places, parts, higher_is_better=higher)
    before = [[run[place] for place in places] for run in stored.runs]
    if cuts_right and stored.answers is not None:
        best = stored.hi if higher else stored.lo
        cuts = stored.answers.take(places).list_cuts(len(before)) or ()
        before = lift_cuts(before, cuts, best) if cuts else before
    lo, hi = stored.lo, stored.hi
    now = [[reference_samples.as_stored(score, lo, hi) for score in run] for run in runs]
    try:
        keys = cluster_keys([sample.group for sample in dataset.samples])
        pairs = pair(before, now, lo=lo, hi=hi, higher_is_better=higher, clusters=keys)
    except ServeEvalError as error:
        return None, f"{UNPAIRED}: {error}"
    if keys is not None:
        return pairs, None  # The groups of prompts that were not asked are not known.
    return replace(pairs, reference_effect=effect_of([list(run) for run in stored.runs])), None


def lift_cuts(
    runs: Sequence[Sequence[float]], cuts: Sequence[Sequence[bool]], best: float
) -> list[list[float]]:
    """Return the scores of runs with the best one for every answer that was cut off."""
    return [
        [best if is_cut else score for is_cut, score in zip(cut, run, strict=True)]
        for cut, run in zip(cuts, runs, strict=True)
    ]


def explain_unpaired(task: Task, reference: Reference) -> str | None:
    """Return why a reference of another scorer has no pairs, although its mismatch was allowed.

    None if the options of the scorer are the same. They are a part of each sample.
    """
    here = task.protocol.get(SCORER_OPTIONS)
    there = (reference.protocol or {}).get(SCORER_OPTIONS)
    if reference.runs is None or reference.protocol is None or here == there:
        return None
    return (
        f"{UNPAIRED}: scorer_options is {here!r} here and {there!r} with the reference, and a score"
        " by other options is no pair; --allow-mismatch scorer_options allows only to compare the"
        " values"
    )


def is_higher_better(metric: Metric, reference: Reference) -> bool:
    """Return True if a higher value is better, as the reference says or else the metric."""
    told = reference.higher_is_better
    return metric.higher_is_better if told is None else told


def _pair_sums(
    sums: Sums,
    dataset: Dataset,
    stored: SampleScores,
    places: Sequence[int],
    parts: Sequence[Sequence[array[float]]],
    *,
    higher_is_better: bool,
) -> tuple[Pairs | None, str | None]:
    """Return the pairs of a value that depends on sums, or None with the reason."""
    from serve_eval.stats.clusters import pair_sums

    if lacking := [part for part in sums.parts if part not in stored.parts]:
        return None, f"{UNPAIRED}: it has no {', '.join(lacking)} per sample"
    before = [
        [[stored.parts[part][run][place] for place in places] for part in sums.parts]
        for run in range(len(stored.runs))
    ]
    try:
        pairs = pair_sums(
            before,
            parts,
            sums.value,
            higher_is_better=higher_is_better,
            limits=sums.limits,
            groups=[one.group for one in dataset.samples],
        )
    except ServeEvalError as error:
        return None, f"{UNPAIRED}: {error}"
    return pairs, None


def runs_differ(dataset: Dataset, reference: Reference) -> bool:
    """Return True if the reference's runs differ as a whole, so that errors must be inflated.

    Prompts of one group count as one, so that only those of the data set are examined where prompts
    share groups.
    """
    from serve_eval.stats.clusters import cluster_keys, number_keys
    from serve_eval.stats.repeats import effect_of

    stored, places, _ = _read_stored(dataset, reference)
    if stored is None:
        return False
    keys = cluster_keys([sample.group for sample in dataset.samples])
    if keys is None:
        effect = effect_of([list(run) for run in stored.runs])
    else:
        rows = [[run[place] for place in places] for run in stored.runs]
        effect = effect_of(rows, clusters=number_keys(keys))
    return effect is not None and effect.inflation > 1.0


def read_stored_runs(
    dataset: Dataset, reference: Reference
) -> tuple[list[array[float]], float, float] | None:
    """Return the reference's runs over a data set, in its order, and the ends of the score range.

    None if the reference has no scores per sample, or does not know one of the samples.
    """
    stored, places, _ = _read_stored(dataset, reference)
    if stored is None:
        return None
    return (
        [array("d", (run[place] for place in places)) for run in stored.runs],
        stored.lo,
        stored.hi,
    )


def count_known(dataset: Dataset, reference: Reference) -> int | None:
    """Return how many samples of a data set the reference has scores of; None without scores."""
    if reference.runs is None:
        return None
    try:
        stored = reference_samples.read(
            Path(reference.file).parent / reference.runs.samples, reference.runs.sha256
        )
    except ReferenceFileError:
        return None
    keys = [sample_key(sample) for sample in dataset.samples]
    return sum(place is not None for place in reference_samples.places(stored.keys, keys))


def read_stored_answers(dataset: Dataset, reference: Reference) -> StoredAnswers | None:
    """Return the reference's answers over a data set, in its order.

    None if it has none, or does not know one of the samples.
    """
    stored, places, _ = _read_stored(dataset, reference)
    if stored is None or stored.answers is None:
        return None
    return stored.answers.take(places)


def _read_stored(
    dataset: Dataset, reference: Reference
) -> tuple[SampleScores | None, Sequence[int], str | None]:
    """Return the reference's scores and each sample's place in them, or None with the reason.

    The reason is None if the reference has no scores per sample.
    """
    if reference.runs is None:
        return None, (), None
    path = Path(reference.file).parent / reference.runs.samples
    try:
        stored = reference_samples.read(path, reference.runs.sha256)
    except ReferenceFileError as error:
        return None, (), f"{UNPAIRED}: {error}"
    places = reference_samples.places(
        stored.keys, [sample_key(sample) for sample in dataset.samples]
    )
    known = [place for place in places if place is not None]
    if len(known) < len(places):
        unknown = len(places) - len(known)
        return (
            None,
            (),
            f"{UNPAIRED}: it lacks {unknown} of {len(places)} prompts",
        )
    return stored, known, None
