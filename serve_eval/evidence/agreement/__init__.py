"""Compare the answers of two runs prompt by prompt."""

__all__ = ["answer_pairs", "first_divergence", "load_words", "self_flips", "text_places", "words"]
