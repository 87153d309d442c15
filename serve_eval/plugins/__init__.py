"""Turn files of ours and of users into tasks, scorers, launchers and verdict rules."""

__all__ = [
    "declarations",
    "extensions",
    "nested_options",
    "own_launchers",
    "registry",
    "scope",
    "setting",
    "values",
]
