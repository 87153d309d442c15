"""Why a run is red or undecided: rules over what its folder holds, each with its evidence and the
option to change.
"""

__all__ = [
    "course",
    "cut",
    "evidence",
    "extraction",
    "finding",
    "levels",
    "setting",
    "sides",
    "story",
    "template",
    "told",
    "unanswered",
]
