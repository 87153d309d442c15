"""Write distances in nats. Pure."""

from __future__ import annotations


def write_nats(nats: float) -> str:
    """Return a distance with its real size: two digits, and 0 only for exactly 0."""
    return "0" if nats == 0 else f"{nats:.2g}"
