"""Find out in seconds whether servers still serve the model that was deployed."""

__all__ = [
    "ci",
    "fleet",
    "judged",
    "legs",
    "making",
    "reference",
    "result",
    "servers",
    "text",
    "verify",
]
