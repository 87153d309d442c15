"""The engine looks each sample up once, and updates the progress by time, not by answers."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, overload

from serve_eval.client.client import Client
from serve_eval.evaluation.engine.lane import Lane
from serve_eval.evaluation.engine.load_session import LoadSession
from serve_eval.evaluation.engine.runner import SHOWN_EVERY_S, ask
from serve_eval.evaluation.results.accumulator import ScoreAccumulator
from serve_eval.schema import Endpoint, Limits, Sample
from serve_eval.storage.journal import Journal
from tests.evaluation.engine.test_runner import _task
from tests.scripted_server import ScriptedServer, answer

MANY = 300


class _Made(Sequence[Sample]):
    """Samples that are made when they are looked up, which is counted."""

    def __init__(self) -> None:
        self.made: Counter[int] = Counter()

    def __len__(self) -> int:
        return MANY

    @overload
    def __getitem__(self, i: int) -> Sample: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Sample]: ...
    def __getitem__(self, i: int | slice) -> Sample | Sequence[Sample]:
        assert isinstance(i, int)
        self.made[i] += 1
        return Sample(id=f"s{i}", prompt=f"question {i}", target="A")


class _Updates:
    """Progress that keeps how many answers each update tells."""

    def __init__(self) -> None:
        self.done: list[int] = []

    def begin(self, task: str, planned: int, had: int) -> None: ...

    def end(self, task: str) -> None: ...

    def update(self, task: str, done: int, failed: object, value: float | None) -> None:
        self.done.append(done)


def _ask(samples: Sequence[Sample], folder: Path, progress: Any = None) -> ScoreAccumulator:
    accumulator = ScoreAccumulator(_task(), samples)

    async def main() -> None:
        async with (
            ScriptedServer([answer("A")]).serve() as url,
            Client(Endpoint(base_url=url), Limits(concurrency=8)) as client,
        ):
            with Journal(folder / "j") as journal:
                lane = Lane("letters", accumulator, journal, range(len(samples)))
                await ask(LoadSession(client, order_seed=0), [lane], progress=progress)

    asyncio.run(main())
    return accumulator


def test_each_sample_is_looked_up_once(tmp_path: Path) -> None:
    samples = _Made()
    assert _ask(samples, tmp_path).scored == MANY
    assert samples.made == Counter(range(MANY))


def test_the_progress_is_updated_by_time_and_not_by_answers(tmp_path: Path) -> None:
    shown, began = _Updates(), time.monotonic()
    _ask(_Made(), tmp_path, shown)
    most = 3 + (time.monotonic() - began) / SHOWN_EVERY_S
    assert SHOWN_EVERY_S >= 1 / 20
    assert len(shown.done) <= most
    assert shown.done[0] == 0
    assert shown.done[-1] == MANY
