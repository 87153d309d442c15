"""Translate between nouns and the JSON and event streams of OpenAI-compatible APIs. No I/O."""
