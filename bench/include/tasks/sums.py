"""Sums that are generated on access: a task of any size for the benchmark of long runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Metric,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers.numeric import extract_flexible


class Generated(Sequence[Sample]):
    """Samples that are created on access."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, i: int) -> Sample: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[Sample]: ...

    def __getitem__(self, i: int | slice) -> Sample | Sequence[Sample]:
        if isinstance(i, slice):
            return [self[at] for at in range(*i.indices(self._count))]
        if not 0 <= i < self._count:
            raise IndexError(i)
        return Sample(id=f"sum-{i}", prompt=f"What is {i} + {42 - i}?\n#### ", target="42")


def _score(sample: Sample, response: Response) -> Score:
    right = extract_flexible(response.text) == sample.target
    return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG)


def _load(roots: DataRoots, wanted: int) -> Dataset:
    return Dataset(samples=Generated(wanted), files=(), total=wanted)


def task(*, num_samples: int = 1_000_000) -> Task:
    """Return a task of sums whose answer is always 42."""
    return Task(
        name="sums",
        version=1,
        reference_file="sums",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=256),
        protocol={"num_samples": num_samples},
        load=_load,
        score=_score,
        scoring="inline",
        answers=lambda sample: ("42", "0"),
    )
