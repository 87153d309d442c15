"""Verdict rules, one per file.

Each defines `judge(result, reference, hypothesis, pairs, *, options) -> Verdict`.
"""

from __future__ import annotations
