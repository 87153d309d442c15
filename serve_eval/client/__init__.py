"""The HTTP client: one session (`client`) over a seam (`transport`), OpenAI JSON to nouns and back (`wire`)."""

__all__ = [
    "client",
    "logprobs",
    "preflight",
    "reply",
    "retry",
    "self_description",
    "server_timing",
    "sse",
    "thinking",
    "transport",
    "wire",
]
