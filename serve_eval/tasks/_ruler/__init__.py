"""The kinds of prompts of RULER: each fills its template with drawn ingredients."""

__all__ = [
    "documents",
    "frequencies",
    "ingredients",
    "kind",
    "kinds",
    "needles",
    "sizes",
    "variables",
]
