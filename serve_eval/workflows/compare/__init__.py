"""Compare two endpoints on the same prompts, with A as the reference of B."""

__all__ = [
    "asking",
    "compare",
    "divergence",
    "exact",
    "exact_text",
    "latency",
    "places",
    "second_answers",
    "sides",
    "steadiness",
    "text",
    "verdict",
]
