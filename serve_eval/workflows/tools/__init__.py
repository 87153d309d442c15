"""Check tool calls and guided decoding of one endpoint, whole and streamed, at several loads."""

__all__ = [
    "answers",
    "asking",
    "cells",
    "comparing",
    "judging",
    "junit",
    "parameters",
    "remarks",
    "story",
    "text",
    "thresholds",
]
