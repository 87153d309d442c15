"""Read the samples of a run folder for a reader: their rows, texts, scores and attempts."""
