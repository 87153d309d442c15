"""Rules that explain from its run folder why a run failed or is undecided.

Each finding comes with its evidence and the option to change.
"""

__all__ = [
    "between",
    "breakdown",
    "course",
    "cut",
    "evidence",
    "extraction",
    "finding",
    "known_messages",
    "levels",
    "loops",
    "prompt_counts",
    "setting",
    "sides",
    "signs",
    "story",
    "template",
    "told",
    "unanswered",
]
