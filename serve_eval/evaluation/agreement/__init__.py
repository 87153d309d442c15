"""Compare the answers of two runs prompt by prompt."""
