"""Requests of one kind, generated on access, for the benchmark of one client process.

If the environment names a file in BENCH_RECORD, the task writes there what the process had spent
when each answer was scored. BENCH_FIRST is the number of answers after which the figures begin.
"""

from __future__ import annotations

import json
import os
import resource
import time
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from serve_eval.errors import PlanError
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
from serve_eval.scorers.choice import prefix_match
from serve_eval.scorers.likelihood import negative_log_likelihood
from serve_eval.scorers.numeric import extract_flexible

KINDS = {"short": 1, "medium": 200, "long": 2100, "logprobs": 1}
"""Most tokens of an answer, by kind."""
_SHOT = (
    "Question: A shelf holds 12 books, and 7 more are put on it. How many books are there?\nAnswer:"
    " 12 + 7 = 19.\n\n"
)
_SHOTS = (_SHOT * 50)[:4350]
_STOP = ("Question:", "</s>", "<|im_end|>")


class Recorder:
    """Notes of each scored answer: the CPU time of the process, the time, the server's stamp."""

    def __init__(self, count: int, path: str | None, first: int) -> None:
        self._count, self._path, self._first = count, path, first
        self._cpu_ns, self._at_us, self._sent_us = array("q"), array("q"), array("q")
        self._marks: list[tuple[int, float, float, float, float, float]] = []

    def note(self, response: Response) -> None:
        """Note an answer, and write the file behind the last one."""
        if self._path is None or len(self._at_us) == self._count:
            return
        self._at_us.append(time.monotonic_ns() // 1000)
        self._cpu_ns.append(time.process_time_ns())
        digits = (response.answer_id or "").removeprefix("cmpl-")
        self._sent_us.append(int(digits) if digits.isdigit() else 0)
        done = len(self._at_us)
        if done in (self._first, self._count):
            usage = resource.getrusage(resource.RUSAGE_SELF)
            spent = usage.ru_utime, usage.ru_stime
            self._marks.append((done, *spent, _rss_mb(), _waited_s(), time.monotonic()))
        if done == self._count:
            told = {"marks": self._marks, "cpu_ns": self._cpu_ns.tolist()}
            told |= {"at_us": self._at_us.tolist(), "sent_us": self._sent_us.tolist()}
            Path(self._path).write_text(json.dumps(told), encoding="ascii")


def _rss_mb() -> float:
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0.0
    return pages * resource.getpagesize() / 2**20


def _waited_s() -> float:
    """Return the seconds in which the event loop was ready and waited for a core."""
    try:
        return int(Path("/proc/self/schedstat").read_text(encoding="ascii").split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


class Generated(Sequence[Sample]):
    """Samples that are created on access, with prompts of about 4.35 KB."""

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
        return Sample(id=f"sample-{i}", prompt=f"[[ID]]{i:08d} {_SHOTS}", target="42")


def _right(response: Response, kind: str) -> bool:
    if kind == "logprobs":
        assert response.prompt_logprobs is not None
        return negative_log_likelihood(response.prompt_logprobs)[1] > 0
    if kind == "short":
        return prefix_match(response.text, "[[ID]]").value == 1.0
    return extract_flexible(response.text) == "42"


def task(*, num_samples: int = 1000, kind: str = "short") -> Task:
    """Return a task whose answers are all right. Raises PlanError for an unknown kind."""
    if kind not in KINDS:
        raise PlanError(f"answers_of_kind: kind must be one of {', '.join(KINDS)}")
    recorder = Recorder(
        num_samples, os.environ.get("BENCH_RECORD"), int(os.environ.get("BENCH_FIRST", 1))
    )

    def score(sample: Sample, response: Response) -> Score:
        right = _right(response, kind)
        recorder.note(response)
        return Score(value=float(right), outcome=Outcome.CORRECT if right else Outcome.WRONG)

    def load(roots: DataRoots, wanted: int) -> Dataset:
        return Dataset(samples=Generated(wanted), files=(), total=wanted)

    return Task(
        name="answers_of_kind",
        version=1,
        reference_file="answers_of_kind",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(
            max_tokens=KINDS[kind], stop=_STOP if kind in ("medium", "long") else ()
        ),
        protocol={"num_samples": num_samples, "kind": kind},
        load=load,
        score=score,
        prompt_logprobs=kind == "logprobs",
        scoring="inline",
        answers=lambda sample: ("42", "0"),
    )
