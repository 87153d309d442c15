"""What a command prints that names a fault rightly."""

from __future__ import annotations

from collections.abc import Mapping

CAUSES: Mapping[str, Mapping[str, str]] = {}
"""For a fault, the commands that can name it, each with a pattern of its output."""
