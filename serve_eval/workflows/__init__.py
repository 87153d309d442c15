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
    "power",
    "references",
    "rescore",
    "servers",
    "show",
    "smoke",
    "suite",
    "watch",
]
