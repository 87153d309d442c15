"""Compare two endpoints on the same prompts, with A as the reference of B."""

__all__ = [
    "asking",
    "at_loads",
    "at_loads_text",
    "ci",
    "compare",
    "divergence",
    "exact",
    "judging",
    "page",
    "rows",
    "sides",
    "text",
    "verdict",
]
