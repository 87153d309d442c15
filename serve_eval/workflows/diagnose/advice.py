"""Tell the commands among the advice of a diagnosis: those that run as they stand. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator

STAND_INS = frozenset({"GOOD", "URL", "A", "B", "N", "DIR", "ID", "NAME"})
"""Words in advice that stand for what the user has to name."""


def is_command(advice: str) -> bool:
    """Return True for a whole command, without a word of advice or a name to replace."""
    try:
        words = shlex.split(advice)
    except ValueError:
        return False
    if words[:1] != ["serve-eval"]:
        return False
    return not any(word in STAND_INS or word.endswith((",", ":", ";")) for word in words)


def list_commands(advice: Iterable[str]) -> Iterator[str]:
    """Yield the commands among advice, in its order."""
    return (one for one in advice if is_command(one))
