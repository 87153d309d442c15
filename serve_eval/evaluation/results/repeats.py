"""Repeat the samples of a task, so that every prompt is asked several times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

from serve_eval.errors import DatasetError
from serve_eval.schema import Sample

_TAKEN = re.compile(r"#\d+$")


class Repeated(Sequence[Sample]):
    """The samples `times` over: all of them once, then all of them again. A repeat's id has `#2`,
    `#3`, ... at its end; the first has the sample's own, so that a finished run can be given more
    repeats. Raises DatasetError for ids that end so already.
    """

    def __init__(self, samples: Sequence[Sample], times: int) -> None:
        self._samples, self._times = samples, times
        taken = next((sample.id for sample in samples if _TAKEN.search(sample.id)), None)
        if times > 1 and taken is not None:
            raise DatasetError(
                f"the id {taken!r} reads as that of a repeat", hint="Leave --repeats out."
            )

    def __len__(self) -> int:
        return self._times * len(self._samples)

    @overload
    def __getitem__(self, index: int) -> Sample: ...
    @overload
    def __getitem__(self, index: slice) -> list[Sample]: ...
    def __getitem__(self, index: int | slice) -> Sample | list[Sample]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        number, place = divmod(range(len(self))[index], len(self._samples))
        sample = self._samples[place]
        return replace(sample, id=f"{sample.id}#{number + 1}") if number else sample

    def __iter__(self) -> Iterator[Sample]:
        return (self[i] for i in range(len(self)))
