"""Keep what asking each worker by itself told."""

from __future__ import annotations

from dataclasses import dataclass

from serve_eval.schema.attribution import Attribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """What asking each worker by itself told: what attribution.json holds.

    `alone` is each worker answering whole, `in_pairs` every context server handing over to every
    generation server (None: not asked). Both have half of the level where both were asked. `asked`
    are the prompts, `requests` all that were sent.
    """

    schema_version: int
    run: str
    model: str | None
    workers: tuple[tuple[str, str], ...]
    asked: int
    requests: int
    alone: Attribution
    in_pairs: Attribution | None
    exit_code: int
    started_at: str
    wall_s: float
    warnings: tuple[str, ...] = ()
