"""Start servers as processes of their own: their environment, their supervisor, and what they report."""
