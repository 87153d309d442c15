"""Compare two endpoints on the same prompts, with A as the reference of B."""
