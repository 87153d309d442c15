"""The results as tables for the documentation."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence

from tests.vllm.fault_table.commands import COMMANDS, USAGE
from tests.vllm.fault_table.kept import Found


def print_tables(found: Sequence[Found], systems: Iterable[str]) -> None:
    """Print what each command found of each system, then what a trial took, if it sent requests.

    Systems without results are left out.
    """
    order = [name for name in systems if any(one.system == name for one in found)]
    _print_rows(found, order, list(COMMANDS), _describe)
    print()
    asking = [c for c in COMMANDS if any(one.requests for one in found if one.command == c)]
    _print_rows(found, order, asking, _describe_costs)


def _print_rows(
    found: Sequence[Found],
    order: Sequence[str],
    commands: Sequence[str],
    describe: Callable[[Sequence[Found]], str],
) -> None:
    print(f"| system | {' | '.join(commands)} |")
    print("|---" * (len(commands) + 1) + "|")
    for name in order:
        own = [one for one in found if one.system == name and one.code != USAGE]
        cells = [describe([one for one in own if one.command == c]) for c in commands]
        print(f"| {name} | {' | '.join(cells)} |")


def _describe(found: Sequence[Found]) -> str:
    """Return "found / named of trials"."""
    if not found:
        return "-"
    hits, named = sum(one.found for one in found), [one.named for one in found]
    if None in named:
        return f"{hits} of {len(found)}"
    return f"{hits} / {sum(map(bool, named))} of {len(found)}"


def _describe_costs(found: Sequence[Found]) -> str:
    """Return "requests / tokens / seconds", the medians of the trials.

    A server that was killed takes its counters with it: "?" if less than nothing is left.
    """
    if not found:
        return "-"
    medians = (
        statistics.median(getattr(one, what) for one in found)
        for what in ("requests", "tokens", "seconds")
    )
    return " / ".join("?" if one < 0 else f"{one:,.0f}" for one in medians)
