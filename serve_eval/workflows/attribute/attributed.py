"""Hold the result of asking each worker separately."""

from __future__ import annotations

from dataclasses import dataclass

from serve_eval.schema.attribution import Attribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributed:
    """The content of attribution.json: the result of asking each worker separately.

    `alone` covers each worker answering on its own, `in_pairs` every context server with every
    generation server (None: not asked), and `transfer` the pairs against their servers alone. If
    pairs were asked, each of the three uses a third of the significance level. `asked` is the
    number of prompts, `requests` that of all requests. `rehearsal`: the stand-in answered.
    """

    schema_version: int
    run: str
    model: str | None
    workers: tuple[tuple[str, str], ...]
    asked: int
    requests: int
    alone: Attribution
    in_pairs: Attribution | None
    transfer: Attribution | None
    exit_code: int
    started_at: str
    wall_s: float
    warnings: tuple[str, ...] = ()
    rehearsal: bool = False
