"""Print microseconds of a score by each of the usual scorers, as JSON, for bench/gate.py.

Wall time counts, so that a scorer that sleeps is seen; the shortest of many short blocks is that of
a scorer that nothing interrupted.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Iterator
from functools import partial

from serve_eval.protocol.shared import build_task
from serve_eval.schema import Response, Sample, Spec

EXPECTED: dict[str, object] = {
    "choice": "B",
    "exact": "forty-two",
    "json_schema": {"schema": {"type": "object", "required": ["name"]}},
    "numeric": 42,
    "regex": "4[0-9]",
    "set": ["red", "green", "blue"],
    "words": ["forty", "two"],
    "yes_no": "yes",
}
"""Scorers of cases, with what a case expects."""
WORK = " The number asked for follows from the steps that are given, one after another." * 6
TASKS = (("gsm8k", "42", WORK), ("mmlu", "B", ""))
BLOCK, BLOCKS = 50, 20


def scored() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each scorer with the scoring of one answer that it takes for right."""
    for name, target, work in TASKS:
        task = build_task(Spec(name=name))
        sample = Sample(id="0", prompt="How many?", target=target)
        answer = Response(text=work + task.answers(sample)[0], finish_reason="stop")
        yield f"task {name}", partial(task.score, sample, answer)
    for name, expected in EXPECTED.items():
        scorer = importlib.import_module(f"serve_eval.scorers.{name}").scorer()
        answer = Response(text=scorer.answers(expected)[0], finish_reason="stop")
        yield name, partial(scorer.score, expected, answer)


def microseconds(score: Callable[[], object]) -> float:
    """Return the microseconds of one call in the fastest block."""
    fastest = float("inf")
    for _ in range(BLOCKS):
        began = time.perf_counter()
        for _ in range(BLOCK):
            score()
        fastest = min(fastest, time.perf_counter() - began)
    return 1e6 * fastest / BLOCK


if __name__ == "__main__":
    print(json.dumps({name: microseconds(score) for name, score in scored()}))
