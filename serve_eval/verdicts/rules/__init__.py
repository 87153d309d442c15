"""Verdict rules, one per file.

Each defines `judge(result, reference, hypothesis, pairs, *, options) -> Verdict`.
"""

from __future__ import annotations

__all__: list[str] = []  # each file is one alternative, found by its name
