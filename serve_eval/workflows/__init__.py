"""Provide every workflow except the evaluation itself: one folder or module per command."""

__all__ = [
    "attribute",
    "bisect",
    "capsule",
    "compare",
    "demo",
    "diagnose",
    "drift",
    "export",
    "invariants",
    "load",
    "references",
    "servers",
    "show",
    "smoke",
    "suite",
    "watch",
]
