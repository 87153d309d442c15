"""Verdict rules, one per file: `judge(result, reference, hypothesis, *, options) -> Verdict`."""
