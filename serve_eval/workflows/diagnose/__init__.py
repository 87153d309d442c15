"""Rules that explain from its run folder why a run failed or is undecided.

Each finding comes with its evidence and the option to change.
"""

__all__ = [
    "answer_counts",
    "between",
    "breakdown",
    "candidates",
    "course",
    "cut",
    "ended",
    "even_loss",
    "evidence",
    "extraction",
    "finding",
    "foreign",
    "known_messages",
    "levels",
    "loops",
    "paired_answers",
    "prompt_counts",
    "setting",
    "sides",
    "signs",
    "slice_data",
    "slice_words",
    "slicing",
    "story",
    "template",
    "told",
    "unanswered",
    "unfinished",
]
