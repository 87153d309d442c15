"""Check that gold answers score full marks on the whole path of a task."""

__all__ = ["check", "entries"]
