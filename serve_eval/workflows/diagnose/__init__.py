"""Rules that explain from its run folder why a run failed or is undecided.

Each finding comes with its evidence and the option to change.
"""

__all__ = [
    "course",
    "cut",
    "evidence",
    "extraction",
    "finding",
    "foreign",
    "known_messages",
    "levels",
    "prompt_counts",
    "setting",
    "sides",
    "story",
    "template",
    "told",
    "unanswered",
]
