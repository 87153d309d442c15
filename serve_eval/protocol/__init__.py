"""Define what a task's number means: shared options, chat templates, the fingerprint."""

__all__ = [
    "chat_template",
    "fingerprint",
    "shared",
]
