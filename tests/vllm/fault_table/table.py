"""The results as a table for the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from tests.vllm.fault_table.commands import COMMANDS, USAGE
from tests.vllm.fault_table.kept import Found


def print_table(found: Sequence[Found]) -> None:
    """Print what each command found of each system, and what a trial took."""
    print(f"| system | {' | '.join(COMMANDS)} |")
    print("|---" * (len(COMMANDS) + 1) + "|")
    for name in dict.fromkeys(one.system for one in found):
        own = [one for one in found if one.system == name]
        cells = [_describe(name, [one for one in own if one.command == c]) for c in COMMANDS]
        print(f"| {name} | {' | '.join(cells)} |")
    print()
    print("| command | requests | tokens | seconds |")
    print("|---|--:|--:|--:|")
    for command in COMMANDS:
        if own := [one for one in found if one.command == command]:
            figures = (
                statistics.median(getattr(one, what) for one in own)
                for what in ("requests", "tokens", "seconds")
            )
            print(f"| {command} | {' | '.join(f'{one:,.0f}' for one in figures)} |")


def _describe(name: str, found: Sequence[Found]) -> str:
    """Return "found / named of trials"."""
    found = [one for one in found if one.code != USAGE]
    if not found:
        return "-"
    hits, named = sum(one.found for one in found), [one.named for one in found]
    if None in named:
        return f"{hits} of {len(found)}"
    return f"{hits} / {sum(map(bool, named))} of {len(found)}"
