"""Translate between schema objects and the JSON and event streams of OpenAI APIs. No I/O."""

__all__ = [
    "answer",
    "answering_servers",
    "calls",
    "echoes",
    "fields",
    "logprobs",
    "refusal",
    "reply",
    "server_timing",
    "sse",
    "stream",
    "thinking",
    "wire",
]
