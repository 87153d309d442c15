"""Check one endpoint without expected answers, by changes that must not change the answers."""

__all__ = ["arms", "check", "chunk_lengths", "folder", "result", "text"]
