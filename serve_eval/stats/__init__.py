"""Pure statistics: functions of numbers, without input or output.

scipy is imported inside functions, so that only a verdict pays for it.
"""

__all__ = [
    "betting",
    "bounds",
    "classic",
    "contingency",
    "drift",
    "drop",
    "early_paired",
    "early_stop",
    "inputs",
    "intervals",
    "judgement",
    "largest_statistic",
    "losses",
    "multiplicity",
    "no_worse",
    "noisy_search",
    "onset",
    "paired_t",
    "pairs",
    "permutation",
    "planning",
    "repeats",
    "score_bounds",
    "sign_tests",
    "slices",
    "together",
]
