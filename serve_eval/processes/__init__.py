"""Start processes of our own: bounded calls, their environment, their file descriptors."""
