"""Carry requests over aiohttp: a second transport, which proves the interface."""

__all__ = ["channel", "errors", "transport"]
