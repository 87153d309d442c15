"""Attempt a request until it is answered or fails: retries, time limits, request rate."""
