"""Serve a simulated endpoint, which looks answers up in a file."""
