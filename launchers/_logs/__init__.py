"""Read the logs of servers: lines, signs of a dead server, and known causes of its end."""

__all__ = ["candidates", "causes", "growing_log", "last_error", "levels", "refusals", "signs"]
