"""Keep the results: reports, comparisons, invariants, loads, canaries, suites and attributions."""

__all__ = [
    "attribution_file",
    "canary_files",
    "comparison_files",
    "invariants_files",
    "load_files",
    "report_file",
    "suite_files",
    "verification_files",
]
