"""What is checked: related checks in a file, which lists them as CHECKS."""

from __future__ import annotations

__all__: list[str] = []  # each file is one alternative, found by its name
