"""Keep the results of stories: reports, comparisons, suites, bisections and others."""

__all__ = [
    "attribution_file",
    "bisection_files",
    "canary_files",
    "comparison_files",
    "invariants_files",
    "load_comparison_files",
    "load_files",
    "report_file",
    "suite_files",
    "verification_files",
]
