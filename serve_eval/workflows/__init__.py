"""Provide every workflow except the evaluation itself: one folder or module per command."""
