"""Hold the checks: each file groups related checks and lists them as CHECKS."""

from __future__ import annotations
