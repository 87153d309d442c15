"""Find the option or the step that broke the accuracy. Start at `bisect.bisect`."""

__all__ = [
    "bisect",
    "configurations",
    "document",
    "search",
    "testing",
]
