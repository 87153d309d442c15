"""Find out in seconds whether servers still serve the model that was deployed."""

__all__ = [
    "asking",
    "candidates",
    "distance",
    "evidence",
    "fleet",
    "judged",
    "legs",
    "prompts",
    "reference",
    "servers",
    "text",
    "texts",
    "verify",
]
