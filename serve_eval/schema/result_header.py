"""The beginning of the file that holds the result of a command."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultHeader:
    """The keys with which the result of every command begins.

    `model` is the one that was judged (None: not known, or several). `started_at` is the time in
    ISO 8601 ("": not known), and `wall_s` the seconds from then to the end. `rehearsal`: the
    stand-in answered, so that nothing was judged.
    """

    schema_version: int = 1
    started_at: str
    wall_s: float
    model: str | None = None
    exit_code: int
    rehearsal: bool = False
