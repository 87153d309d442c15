"""Look at this machine: what serve-eval can do here, and what it would need."""

__all__ = ["document", "findings"]
