"""Ask each worker behind a shared endpoint by itself."""

__all__ = ["answers", "asking", "attribute", "attributed", "legs", "text", "workers"]
