"""Keep the results: reports, comparisons, invariants, suites and attributions."""

__all__ = [
    "attribution_file",
    "comparison_files",
    "invariants_files",
    "report_file",
    "suite_files",
    "verification_files",
]
