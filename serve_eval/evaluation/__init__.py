"""Evaluate an endpoint: the main story, told by `evaluate`."""
