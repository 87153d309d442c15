"""Rules that explain from its run folder why a run failed or is undecided.

Each finding comes with its evidence and the option to change.
"""

__all__ = [
    "between",
    "breakdown",
    "candidates",
    "course",
    "endings",
    "evidence",
    "extraction",
    "finding",
    "foreign",
    "loops",
    "paired_answers",
    "run_rules",
    "setting",
    "signs",
    "slice_data",
    "slice_words",
    "slicing",
    "story",
    "told",
    "unanswered",
]
