"""Check one endpoint without right answers: changes that should change nothing."""

__all__ = ["arms", "check", "chunk_lengths", "folder", "result", "text"]
