"""Keep servers running for several runs."""
