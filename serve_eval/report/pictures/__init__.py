"""Draw the pictures of a page as SVG, and as bars where the drawing library is missing."""

__all__ = ["picture"]
