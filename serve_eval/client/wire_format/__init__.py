"""Translate between schema objects and the JSON and event streams of OpenAI APIs. No I/O."""

__all__ = [
    "answer",
    "bodies",
    "logprobs",
    "refusal",
    "reply",
    "response_head",
    "sse",
    "stream",
    "wire",
]
