"""Verdict rules, one per file: `judge(result, reference, hypothesis, pairs, *, options) ->
Verdict`.
"""

__all__ = [
    "below_reference",
    "exit_code",
    "pairing",
    "reference_samples",
    "references",
    "rules",
    "validity",
]
