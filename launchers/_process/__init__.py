"""Start servers as separate processes: their environment, supervisor and reports."""
