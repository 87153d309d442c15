"""Run trials of the commands on a system that is up."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Collection
from pathlib import Path

from tests.vllm.fault_table import kept
from tests.vllm.fault_table.causes import CAUSES
from tests.vllm.fault_table.commands import COMMANDS
from tests.vllm.fault_table.kept import RESULTS, Found
from tests.vllm.fault_table.system import System


def is_done(top: Path, name: str, trial: int, commands: Collection[str]) -> bool:
    """Return True if these commands have results of this trial."""
    return set(commands) <= _find_done(top, name, trial)


def _find_done(top: Path, name: str, trial: int) -> set[str]:
    found = kept.read(top / RESULTS)
    return {one.command for one in found if (one.system, one.trial) == (name, trial)}


def is_named(name: str, command: str, text: str) -> bool | None:
    """Return True if a text says where the fault is; None if the command has no name for it."""
    cause = CAUSES.get(name, {}).get(command)
    return None if cause is None else re.search(cause, text) is not None


def run_trial(name: str, system: System, trial: int, commands: Collection[str], top: Path) -> None:
    """Run those commands of one trial that have no result yet, and keep the results."""
    done = _find_done(top, name, trial)
    folder = top / "".join(c if c.isalnum() else "_" for c in name) / str(trial)
    folder.mkdir(parents=True, exist_ok=True)
    for command in [one for one in COMMANDS if one in commands and one not in done]:
        before, began = system.count(), time.monotonic()
        told = COMMANDS[command](system, trial, folder)
        took, after = time.monotonic() - began, system.count()
        (folder / f"{command}.txt").write_text(told.text)
        named = is_named(name, command, told.text)
        found = Found(
            system=name,
            trial=trial,
            command=command,
            code=told.code,
            found=told.found or bool(named),
            named=named,
            requests=after[0] - before[0],
            tokens=after[1] - before[1],
            seconds=took,
        )
        kept.add(top / RESULTS, found)
        short = f"{name} | {trial} | {command} | {told.code} {found.found} | {took:.0f} s"
        print(short, file=sys.stderr, flush=True)
