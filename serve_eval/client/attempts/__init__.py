"""Try a request until it is answered or given up: retries, time limits, pace."""
