"""Measure the accuracy of one endpoint over the number of requests in flight."""

__all__ = ["asking", "bisecting", "document", "judging", "points", "story"]
