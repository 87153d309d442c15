"""Keep the results of stories: reports, comparisons, suites, bisections and others."""

__all__ = [
    "invariants_files",
    "report_file",
    "story_results",
]
