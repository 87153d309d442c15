"""Scorers, one per file: `scorer(*, options) -> Scorer`."""

from __future__ import annotations

__all__: list[str] = []  # each file is one alternative, found by its name
