"""Measure what each command finds of each fault: `python -m tests.vllm.fault_table FOLDER`.

Results are kept in the folder: a second call continues, and prints the tables of all at the end. A
new folder begins with the trials of measured.jsonl.
"""

import argparse
import shutil
import time
from pathlib import Path

from tests.vllm.deployments import Deployments
from tests.vllm.fault_table import trials as fault_table_trials
from tests.vllm.fault_table.commands import COMMANDS, Stage
from tests.vllm.fault_table.faults import FAULTS, SOUND
from tests.vllm.fault_table.trials import is_done, run_trial

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
    if fault_table_trials.MEASURED.exists() and not (top / fault_table_trials.RESULTS).exists():
        shutil.copy(fault_table_trials.MEASURED, top / fault_table_trials.RESULTS)
    systems = {**FAULTS, **SOUND}
    chosen = {
        name: fault
        for name, fault in systems.items()
        if not given.words or any(word in name for word in given.words)
    }
    until = time.monotonic() + 60 * given.minutes
    measure(chosen, given.commands.split(","), given.trials, top, until)
    fault_table_trials.print_tables(
        fault_table_trials.read(top / fault_table_trials.RESULTS), systems
    )


if __name__ == "__main__":
    main()
