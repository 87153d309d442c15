"""Find the option or the step that broke the accuracy. Start at `bisect.bisect`."""

__all__ = [
    "bisect",
    "changes",
    "configurations",
    "document",
    "folder",
    "held",
    "preview",
    "reference",
    "search",
    "testing",
]
