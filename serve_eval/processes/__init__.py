"""Start processes of serve-eval: bounded calls, their environment, descriptors and collector."""
