"""Memory of a run of a million samples: `python bench/million.py [SAMPLES]`, with a server that answers at once.

The samples are generated when they are asked for, as a task of that size would do. Everything else is the tool's own:
the check of the ids, the fingerprint, the runner, the journal on disk, the tally, the result. What grows are flat
arrays of some twenty bytes per sample, for scores and outcomes, so that answers can be compared pairwise later.
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import overload

import uvloop
from cores import CLIENT, pin
from serving import Mode, Server

from serve_eval.client.client import Client
from serve_eval.fingerprint import fingerprint
from serve_eval.journal import Journal
from serve_eval.order import arranged
from serve_eval.preparation import check_ids
from serve_eval.runner import Lane, Session, ask
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Endpoint,
    Hypothesis,
    Limits,
    Metric,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers.numeric import extract_flexible
from serve_eval.tally import Tally
from serve_eval.watch import Watch

IN_FLIGHT = 512
BYTES_PER_SAMPLE = 100
"""Growth up to which memory is called flat: an answer alone has ten times as many."""


class Generated(Sequence[Sample]):
    """Samples that exist while somebody looks at them."""

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
            raise TypeError("generated samples are taken one by one")
        if not 0 <= i < self._count:
            raise IndexError(i)
        return Sample(id=f"sum-{i}", prompt=f"What is {i} + {42 - i}?\n#### ", target="42")


def _score(sample: Sample, response: Response) -> Score:
    right = extract_flexible(response.text) == sample.target
    return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG)


def _load(roots: DataRoots, wanted: int) -> Dataset:
    return Dataset(samples=Generated(wanted), files=(), total=wanted)


TASK = Task(
    name="sums",
    version=1,
    reference_file="sums",
    metric=Metric(),
    hypothesis=Hypothesis(),
    sampling=SamplingParams(max_tokens=16),
    protocol={},
    load=_load,
    score=_score,
    answers=lambda sample: ("42", "0"),
)


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class Told:
    """Notes the peak at powers of ten."""

    def __init__(self) -> None:
        self.peaks: dict[int, float] = {}

    def begin(self, task: str, planned: int, had: int) -> None: ...

    def update(self, task: str, done: int, failed: int, value: float | None) -> None:
        if done in (10_000, 100_000, 1_000_000):
            self.peaks[done] = peak_mb()

    def end(self, task: str) -> None: ...


async def run(base_url: str, count: int, folder: Path) -> None:
    """Asks all of them and prints what it took."""
    dataset = TASK.load(DataRoots(), count)
    check_ids(TASK, dataset)
    fingerprint(TASK, dataset)
    before, told, began = peak_mb(), Told(), time.monotonic()
    async with Client(Endpoint(base_url=base_url, model="m"), Limits(concurrency=IN_FLIGHT, order="random")) as client:
        with Journal(folder / "journal.jsonl") as journal, (folder / "scores.jsonl").open("wb") as scores:
            tally = Tally(TASK, dataset.samples, scores)
            lane = Lane(TASK.name, tally, journal, arranged(dataset.samples, tally.unanswered(), "random", "0"))
            await ask(Session(client, order_seed=0), [lane], progress=told, watch=Watch(answered=False))
            result = tally.result()
    assert (result.scored, result.value) == (count, 100.0), result
    took, after = time.monotonic() - began, peak_mb()
    at = ", ".join(f"{peak:.0f} MB after {done}" for done, peak in told.peaks.items())
    print(
        f"  {count} generated samples, {IN_FLIGHT} in flight, at once: {before:.0f} MB before, {at}, "
        f"{after:.0f} MB in all"
    )
    print(f"  {took:.0f} s, {count / took:.0f} samples/s, all of them right")
    first = told.peaks.get(10_000, before)
    growth = (after - first) * 2**20 / max(count - 10_000, 1)
    said = "reached" if growth <= BYTES_PER_SAMPLE else "MISSED"
    print(f"  {said:13} growth per further sample: {growth:.0f} bytes (at most {BYTES_PER_SAMPLE})")


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    pin(CLIENT)
    with Server(Mode()) as server, tempfile.TemporaryDirectory(prefix="serve-eval-bench-") as folder:
        uvloop.run(run(server.base_url, count, Path(folder)))


if __name__ == "__main__":
    main()
