"""The kinds of prompts of RULER: each fills its template with drawn material."""

__all__ = [
    "documents",
    "frequencies",
    "kind",
    "kinds",
    "material",
    "needles",
    "sizes",
    "variables",
]
