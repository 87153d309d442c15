"""Repeat the samples of a task, to ask every prompt several times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import overload

from serve_eval.errors import DatasetError
from serve_eval.schema import Sample

_TAKEN = re.compile(r"#\d+$")


class Repeated(Sequence[Sample]):
    """A sequence of the samples, repeated `times` times as a whole.

    The id of a repeat ends with `#2`, `#3`, ... The first repeat keeps the sample's own id, so that
    a finished run can get more repeats. Raises DatasetError if an id already ends that way.
    """

    def __init__(self, samples: Sequence[Sample], times: int) -> None:
        self._samples, self._times = samples, times
        taken = next((sample.id for sample in samples if _TAKEN.search(sample.id)), None)
        if times > 1 and taken is not None:
            raise DatasetError(
                f"the id {taken!r} looks like that of a repeat", hint="Leave out --repeats."
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
