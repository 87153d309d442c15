"""Look at this machine: its GPUs and who uses them, its hosts, its locks, and the processes it killed."""
