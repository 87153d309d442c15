"""Measure what each command finds of each fault: `python -m tests.vllm.fault_table FOLDER`.

Results are kept in the folder: a second call continues, and prints the tables of all at the end. A
new folder begins with the trials of measured.jsonl.
"""

from __future__ import annotations

import argparse
import re
import shutil
import statistics
import sys
import time
from pathlib import Path

import msgspec

from tests.vllm.deployments import Deployments
from tests.vllm.fault_table.commands import CAUSES, COMMANDS, USAGE, Stage
from tests.vllm.fault_table.faults import FAULTS, SOUND


def is_done(top, name, trial, commands):
    """Return True if these commands have results of this trial."""
    return set(commands) <= _find_done(top, name, trial)


def _find_done(top, name, trial):
    found = read(top / RESULTS)
    return {one.command for one in found if (one.system, one.trial) == (name, trial)}


def is_named(name, command, text):
    """Return True if a text says where the fault is; None if the command has no name for it."""
    cause = CAUSES.get(name, {}).get(command)
    return None if cause is None else re.search(cause, text) is not None


def run_trial(name, system, trial, commands, top):
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
        add(top / RESULTS, found)
        short = f"{name} | {trial} | {command} | {told.code} {found.found} | {took:.0f} s"
        print(short, file=sys.stderr, flush=True)


RESULTS = "found.jsonl"
MEASURED = Path(__file__).with_name("measured.jsonl")


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Keep the result of one command in one trial.

    `found`: the command accuses the deployment, or names the fault. `named`: it says where the
    fault is (None: the command has no name for it).
    """

    system: str
    trial: int
    command: str
    code: int
    found: bool
    named: bool | None
    requests: float
    tokens: float
    seconds: float


def read(file):
    """Return the results so far."""
    lines = file.read_bytes().splitlines() if file.exists() else []
    return [msgspec.json.decode(line, type=Found) for line in lines]


def add(file, found):
    """Append a result."""
    with file.open("ab") as out:
        out.write(msgspec.json.encode(found) + b"\n")


def print_tables(found, systems):
    """Print what each command found of each system, then what a trial took, if it sent requests.

    Systems without results are left out.
    """
    order = [name for name in systems if any(one.system == name for one in found)]
    _print_rows(found, order, list(COMMANDS), _describe)
    print()
    asking = [c for c in COMMANDS if any(one.requests for one in found if one.command == c)]
    _print_rows(found, order, asking, _describe_costs)


def _print_rows(
    found,
    order,
    commands,
    describe,
):
    print(f"| system | {' | '.join(commands)} |")
    print("|---" * (len(commands) + 1) + "|")
    for name in order:
        own = [one for one in found if one.system == name and one.code != USAGE]
        cells = [describe([one for one in own if one.command == c]) for c in commands]
        print(f"| {name} | {' | '.join(cells)} |")


def _describe(found):
    """Return "found / named of trials"."""
    if not found:
        return "-"
    hits, named = sum(one.found for one in found), [one.named for one in found]
    if None in named:
        return f"{hits} of {len(found)}"
    return f"{hits} / {sum(map(bool, named))} of {len(found)}"


def _describe_costs(found):
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


TRIALS = 10


def measure(chosen, commands, trials, top, until):
    """Run the trials that have no result yet, until a time of the monotonic clock."""
    left = [
        (name, todo)
        for name in chosen
        if (todo := [t for t in range(trials) if not is_done(top, name, t, commands)])
    ]
    if not left:
        return
    running = Deployments(top)
    try:
        stage = Stage(running, top)
        for name, todo in left:
            alone = chosen[name].one_trial_per_start
            for group in [[trial] for trial in todo] if alone else [todo]:
                if time.monotonic() > until:
                    return
                with chosen[name].open(stage) as system:
                    for trial in group:
                        if time.monotonic() > until:
                            return
                        run_trial(name, system, trial, commands, top)
    finally:
        running.close()


def main():
    """Measure, and print the tables."""
    parser = argparse.ArgumentParser(prog="python -m tests.vllm.fault_table", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("words", nargs="*", help="only systems whose name has one of these words")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    parser.add_argument("--minutes", type=float, default=1e9, help="start no trial after these")
    given = parser.parse_args()
    top = given.folder.absolute()
    top.mkdir(parents=True, exist_ok=True)
    if MEASURED.exists() and not (top / RESULTS).exists():
        shutil.copy(MEASURED, top / RESULTS)
    systems = {**FAULTS, **SOUND}
    chosen = {
        name: fault
        for name, fault in systems.items()
        if not given.words or any(word in name for word in given.words)
    }
    until = time.monotonic() + 60 * given.minutes
    measure(chosen, given.commands.split(","), given.trials, top, until)
    print_tables(read(top / RESULTS), systems)


if __name__ == "__main__":
    main()
