"""A task with a metric, an aggregation and a breakdown of choice, for tests of results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from serve_eval.schema import (
    Aggregation,
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

SAMPLES = [
    Sample(
        id=str(i), prompt=f"{i}?", target="1", metadata={"kind": "even" if i % 2 == 0 else "odd"}
    )
    for i in range(100)
]


def small_task(metric: Metric, aggregation: Aggregation, **more: Any) -> Task:
    """Return a task that is never asked."""
    return Task(
        name="small",
        version=1,
        reference_file="small",
        metric=metric,
        hypothesis=Hypothesis(num_samples=3),
        sampling=SamplingParams(max_tokens=5),
        protocol={},
        load=_load,
        score=_score,
        answers=lambda sample: ("1", "0"),
        aggregation=aggregation,
        **more,
    )


def by_kind(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return the mean by the kind of the sample."""
    kinds: dict[str, list[float]] = {}
    for sample, value in scored:
        kinds.setdefault(sample.metadata["kind"], []).append(value)
    return {
        "kind": {
            kind: {"value": 100.0 * sum(values) / len(values), "scored": len(values)}
            for kind, values in kinds.items()
        }
    }


def _load(roots: object, wanted: object) -> Dataset:
    raise NotImplementedError


def _score(sample: Sample, response: Response) -> Score:
    return Score(value=float(response.text), outcome=Outcome.PARTIAL)
