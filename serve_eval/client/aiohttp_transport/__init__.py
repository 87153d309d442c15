"""Carry requests by aiohttp: the second transport, which proves the seam."""

__all__ = ["channel", "errors", "transport"]
