"""Repeat the same questions, checks and probes, and raise an alarm if they get worse or differ."""
