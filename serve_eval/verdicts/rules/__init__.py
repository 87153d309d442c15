"""Verdict rules, one per file: `judge(result, reference, hypothesis, pairs, *, options) -> Verdict`."""
