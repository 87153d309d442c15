"""Decide what a task's number means: shared options of a protocol, chat templates, the fingerprint."""
