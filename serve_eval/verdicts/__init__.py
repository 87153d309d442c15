"""Decide the verdict of a task from its result and its reference."""
