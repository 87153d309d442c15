"""Inspect this machine: its GPUs and their users, its hosts, locks and killed processes."""
