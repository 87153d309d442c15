"""Evaluate running LLM endpoints and say whether they still answer as well as they should."""

__version__ = "0.1.0"
