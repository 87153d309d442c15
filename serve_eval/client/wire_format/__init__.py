"""Translate between nouns and the JSON and event streams of OpenAI-compatible APIs. No I/O."""

__all__ = [
    "answer",
    "calls",
    "echoes",
    "logprobs",
    "reply",
    "server_timing",
    "sse",
    "stream",
    "thinking",
    "wire",
]
