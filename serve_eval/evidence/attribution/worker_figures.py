"""Measure what each worker's requests took: transfers of the KV cache, and cached tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import median

from serve_eval.schema import Response, WorkerFigures
from serve_eval.stats.contingency import CONTEXT, GENERATION
from serve_eval.storage.records.traces import Served


def measure_workers(answers: Sequence[tuple[Served, Response | None]]) -> tuple[WorkerFigures, ...]:
    """Return the figures of each worker, the context servers first."""
    found = []
    for role, field in ((CONTEXT, "context"), (GENERATION, "generation")):
        for worker in sorted(
            {name for line, _ in answers if (name := getattr(line, field)) is not None}
        ):
            its = [(line, response) for line, response in answers if getattr(line, field) == worker]
            told = [r.usage for _, r in its if r is not None and r.usage.cached_tokens is not None]
            found.append(
                WorkerFigures(
                    worker=worker,
                    role=role,
                    answers=len(its),
                    kv_transfer_s=_median(line.kv_transfer_s for line, _ in its),
                    kv_bytes=_median(line.kv_bytes for line, _ in its),
                    prompt_tokens=sum(usage.prompt_tokens for usage in told) if told else None,
                    cached_tokens=sum(usage.cached_tokens or 0 for usage in told) if told else None,
                )
            )
    return tuple(found)


def _median(values: Iterable[float | None]) -> float | None:
    told = [value for value in values if value is not None]
    return median(told) if told else None
