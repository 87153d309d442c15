"""Generate requests with tools and with guided decoding, each with its right answer."""

__all__ = ["everyday", "guided", "requests", "shapes", "tooled"]
