"""Define what a task's number means: shared options, chat templates, the fingerprint."""

__all__ = ["chat_template", "choices", "fingerprint", "shared", "special_tokens", "templating"]
