"""Read, ask and check the single-turn questions of the Berkeley Function Calling Leaderboard."""

__all__ = [
    "asking",
    "categories",
    "checking",
    "expected",
    "literals",
    "reading",
    "rows",
    "scoring",
]
