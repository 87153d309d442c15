"""The results as a table for the documentation."""

from __future__ import annotations

import re
import statistics
from collections.abc import Sequence

from tests.vllm.fault_table.causes import CAUSES
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
    cause = CAUSES.get(name, {}).get(found[0].command)
    named = [cause is not None and re.search(cause, one.text) is not None for one in found]
    # A warning that names the fault has found it, whatever the exit code.
    hits = sum(one.found or told for one, told in zip(found, named, strict=True))
    return f"{hits} / {sum(named)} of {len(found)}" if cause else f"{hits} of {len(found)}"
