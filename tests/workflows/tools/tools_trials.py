"""Check stand-ins with one fault each, and sound ones, and count what is named.

Run `python -m tests.workflows.tools.tools_trials [TRIALS [NAME ...]]`; 20 trials take an hour. Each
trial has a seed of its own for the model's errors. A model errs in 6 % of the requests in which it
may choose, and half of the models think. docs/measured/check-tools.md has the table.
"""

import asyncio
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from serve_eval.tasks._tool_requests import KINDS
from tests.workflows.tools.on_standin import MODEL_ERRORS, check_standin, write_tool_answers

LOADS = (1, 16)
LIMIT = 160


class FaultTrial(NamedTuple):
    """A fault of the server, and the errors of which one must be named."""

    faults: Mapping[str, Any]
    named: tuple[str, ...]
    where: str
    thinks: bool = False
    noise: float = 0.0


TRIALS = {
    "last piece of a stream dropped": FaultTrial(
        {"drops_last_piece": True}, ("lost part",), "stream"
    ),
    "characters cut in a stream": FaultTrial(
        {"cuts_characters": True}, ("broken characters",), "stream"
    ),
    "pieces of 10 tokens become text": FaultTrial({"interval": 10}, ("markup left",), "stream"),
    "parser leaves marks": FaultTrial({"leaves_markup": True}, ("markup left",), "everywhere"),
    "JSON broken above 8 in flight": FaultTrial(
        {"breaks_json_above": 8}, ("invalid JSON",), "at 16"
    ),
    "reasoning lost before a call": FaultTrial(
        {"loses_reasoning": True}, ("lost reasoning",), "everywhere", thinks=True
    ),
    "all calls have index 0": FaultTrial({"one_index": True}, ("bad id or index",), "stream"),
    "all calls have one id": FaultTrial({"one_id": True}, ("bad id or index",), "everywhere"),
    "finish_reason stop": FaultTrial(
        {"wrong_finish": True}, ("wrong finish_reason",), "everywhere"
    ),
    "usage of streams wrong": FaultTrial(
        {"wrong_usage": True}, ("prompt tokens differ",), "stream"
    ),
    "only the first argument kept": FaultTrial(
        {"forgets_arguments": True}, ("schema mismatch",), "everywhere"
    ),
    "sound": FaultTrial({}, (), ""),
    "sound, thinks": FaultTrial({}, (), "", thinks=True),
    "sound, 4 % drawn again": FaultTrial({}, (), "", noise=0.04),
}


def run_trial(trial, seed):
    """Return the result of one check."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "answers.jsonl"
        answers = write_tool_answers(file, list(KINDS), MODEL_ERRORS, seed)
        return asyncio.run(
            check_standin(
                Path(folder) / "out",
                answers,
                trial.faults,
                loads=LOADS,
                limit=LIMIT,
                seed=seed,
                thinks=trial.thinks or (bool(trial.named) and seed % 2 == 1),
                noise=trial.noise,
            )
        )


def is_named(trial, found):
    """Return True if the fault is named, at its place."""
    cells = [one.cells for one in found.findings if one.fault in trial.named]
    if not cells:
        return False
    places = {name for one in cells for name in one}
    everywhere = {cell.name for cell in found.cells}
    right = {
        "everywhere": everywhere,
        "stream": {name for name in everywhere if name.startswith("stream")},
        "at 16": {name for name in everywhere if name.endswith("at 16")},
    }[trial.where]
    return places == right


def main():
    """Print a row for each kind of server."""
    trials = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    for name, trial in TRIALS.items():
        if sys.argv[2:] and name not in sys.argv[2:]:
            continue
        began = time.monotonic()
        found = [run_trial(trial, seed) for seed in range(trials)]
        named = sum(is_named(trial, one) for one in found) if trial.named else 0
        said = Counter(finding.fault for one in found for finding in one.findings)
        seconds = (time.monotonic() - began) / trials
        print(
            f"{name:<34} accused {sum(one.exit_code == 1 for one in found):>2}, named {named:>2}"
            f" of {trials}; {found[0].requests} requests, {seconds:.1f} s; {dict(said)}",
            flush=True,
        )


if __name__ == "__main__":
    main()
