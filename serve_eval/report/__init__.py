"""Show a report on the terminal and as a page. Both are made from report.json."""

__all__ = [
    "attribution",
    "lines",
    "page",
    "pictures",
    "samples",
    "terminal",
    "text",
]
