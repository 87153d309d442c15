"""Compare the answers of two runs prompt by prompt."""

__all__ = [
    "answer_pairs",
    "answer_texts",
    "self_flips",
]
