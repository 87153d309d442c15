"""Name the files of runs, comparisons and suites that more than one module reads."""

from __future__ import annotations

COMPARISON_PLAN, COMPARISON = "compare.json", "comparison.json"
"""What a comparison compares and by which rule, and its result."""
SUITE_RUNS = "runs"
"""The folder of a suite that holds its run folders."""
