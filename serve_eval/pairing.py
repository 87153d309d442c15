"""This run's scores beside those of its reference's runs, prompt by prompt."""

from __future__ import annotations

import math
from array import array
from pathlib import Path
from typing import TYPE_CHECKING

from serve_eval import reference_samples
from serve_eval.errors import ReferenceFileError
from serve_eval.fingerprint import sample_key
from serve_eval.schema import Dataset, Reference, Task

if TYPE_CHECKING:
    from serve_eval.stats.pairs import Pairs


def with_reference(
    task: Task, dataset: Dataset, reference: Reference, scores: array[float]
) -> tuple[Pairs | None, str | None]:
    """The pairs, or None with the reason why there are none (and None where the reference has no scores at all).

    A subset is paired with the same prompts of the reference. Prompts that it does not know cannot be paired: one is
    enough to say that other data was asked.
    """
    if reference.runs is None or all(map(math.isnan, scores)):
        return None, None
    path = Path(reference.file).parent / reference.runs.samples
    try:
        stored = reference_samples.read(path, reference.runs.sha256)
    except ReferenceFileError as error:
        return None, f"not paired with the reference: {error}"
    places = reference_samples.places(stored.keys, [sample_key(sample) for sample in dataset.samples])
    known = [place for place in places if place is not None]
    if len(known) < len(places):
        unknown = len(places) - len(known)
        return None, f"not paired with the reference: it does not know {unknown} of {len(places)} prompts"
    from serve_eval.stats.pairs import pair

    higher = task.metric.higher_is_better if reference.higher_is_better is None else reference.higher_is_better
    before = [[run[place] for place in known] for run in stored.runs]
    return pair(before, [list(scores)], lo=stored.lo, hi=stored.hi, higher_is_better=higher), None
