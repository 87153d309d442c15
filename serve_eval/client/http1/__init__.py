"""HTTP/1.1 connections of ours, below the seam: made, kept, and proven in step."""

__all__ = ["connection", "dialer", "steps", "transport", "tunnel"]
