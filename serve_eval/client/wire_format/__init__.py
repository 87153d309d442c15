"""Translate between schema objects and the JSON and event streams of OpenAI APIs. No I/O."""
