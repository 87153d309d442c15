"""Print how often each fault of a path is found and named, and how often a sound one is accused.

Run `python -m tests.evidence.path_proof.path_trials [FAULTS] [SOUND]`: 20 runs of each fault and
100 of sound deployments by default. Each run draws another order of the prompts and, for answers
that do not repeat, other prompts: one answer in 15 differs when it is asked again.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from serve_eval.schema import ProofState
from tests.evidence.path_proof.deployments import CLAIMS, Deployment, PathFault, run

SAMPLES, UNSTEADY = 80, 1 / 15
ALL = ("kv_transfer", "prefix_cache", "speculation", "deterministic")
ALSO = {PathFault.BYPASS: {"prefix_cache"}}
"""Claims that a fault refutes too: without a context server, no prefix cache is searched."""


class PathTrial(NamedTuple):
    """The result of one run: what was refuted or unknown, and what it took."""

    refuted: frozenset[str]
    unknown: frozenset[str]
    requests: int
    seconds: float


def try_once(fault, seed, *, readable=True):
    """Run one deployment and return what was found."""
    deployed = Deployment(fault, seed=seed, readable=readable, unsteady=UNSTEADY)
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        report = run(deployed, Path(folder) / "run", expect=ALL, samples=SAMPLES)
    by_state = {
        state: frozenset(one.claim.value for one in report.path if one.state is state)
        for state in ProofState
    }
    reasons = report.tasks[0].verdict.reasons
    named = frozenset(
        claim for claim in ALL if any(f"path not proven: {claim}: " in line for line in reasons)
    )
    return PathTrial(
        by_state[ProofState.REFUTED] & named,
        by_state[ProofState.UNKNOWN],
        len(deployed.front.asked),
        time.monotonic() - began,
    )


def describe_trials(name, claim, allowed, trials):
    """Return a row of the table."""
    found = sum(bool(one.refuted | one.unknown) for one in trials)
    named = sum(claim in one.refuted and one.refuted <= {claim, *allowed} for one in trials)
    requests = sum(one.requests for one in trials) / len(trials)
    seconds = sum(one.seconds for one in trials) / len(trials)
    told = "-" if claim is None else f"{named} of {len(trials)}"
    return f"| {name} | {found} of {len(trials)} | {told} | {requests:.0f} | {seconds:.2f} |"


def main(faults=20, sound=100):
    """Print the table."""
    print(f"{SAMPLES} prompts a run; requests with probes; seconds of the whole run")
    print("| deployment | found | named | requests | seconds |")
    print("|---|---|---|---|---|")
    for fault, claim in CLAIMS.items():
        trials = [try_once(fault, seed) for seed in range(faults)]
        print(describe_trials(fault, claim, ALSO.get(fault, set()), trials), flush=True)
    trials = [try_once(PathFault.NONE, seed, readable=False) for seed in range(faults)]
    unknown = sum(len(one.unknown) == 3 for one in trials)
    print(describe_trials("sound, without counters", None, set(), trials), flush=True)
    trials = [try_once(PathFault.NONE, seed) for seed in range(sound)]
    print(describe_trials("sound", None, set(), trials))
    print(f"without counters, three claims are unknown: {unknown} of {faults}")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
