"""The kinds of prompts of RULER: each fills its template with drawn ingredients."""

__all__ = [
    "ingredients",
    "kinds",
    "needles",
]
