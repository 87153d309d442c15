"""Define the benchmarks, one per file: `task(*, options) -> Task`."""

from __future__ import annotations

__all__: list[str] = []  # each file is one alternative, found by its name
