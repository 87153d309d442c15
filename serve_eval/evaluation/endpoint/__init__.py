"""Get an endpoint and learn what serves it."""

__all__ = ["deployment", "hang_detector", "keeper", "launch", "server_quirks"]
