"""Define what a task's number means: shared options, chat templates, the fingerprint."""
