"""Scorers, one per file: `scorer(*, options) -> Scorer`."""

from __future__ import annotations
