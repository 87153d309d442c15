"""Keep the results of stories: reports, comparisons, suites, bisections and others."""

__all__ = [
    "attribution_file",
    "canary_files",
    "comparison_files",
    "invariants_files",
    "report_file",
    "suite_files",
    "verification_files",
]
