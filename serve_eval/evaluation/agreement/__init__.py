"""Compare the answers of two runs prompt by prompt."""

__all__ = ["answer_pairs", "self_flips", "text_places", "words"]
