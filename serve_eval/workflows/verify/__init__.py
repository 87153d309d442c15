"""Find out in seconds whether servers still serve the model that was deployed."""

__all__ = [
    "candidates",
    "ci",
    "fleet",
    "floors",
    "judged",
    "legs",
    "making",
    "path",
    "prompts",
    "reference",
    "remarks",
    "servers",
    "text",
    "texts",
    "verify",
]
