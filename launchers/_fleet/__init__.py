"""Run servers together for the length of a block: placed, started, ready, watched, ended."""
