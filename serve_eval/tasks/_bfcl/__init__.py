"""Read, ask and check the single-turn questions of the Berkeley Function Calling Leaderboard."""

__all__ = [
    "checking",
    "literals",
    "rows",
    "scoring",
]
