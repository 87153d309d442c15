"""Print the table of faults and detectors of docs/measured/compare-detectors.md.

The command is `python -m tests.detectors [SEEDS] [JOBS] [NAME]`; it prints the rows of faults whose
name matches the pattern NAME.
"""

import re
import sys
import tempfile
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from serve_eval.workflows.attribute import SAMPLES
from tests.detectors.detectors import FAULTS, NAMES, SOUND, findings, smoked, tried

SIZES = (25, 50, 100, 200, 400)
"""Numbers of prompts that both sides are asked."""
SURE = 0.9
"""Share of the seeds in which a fault must be found to count as found at a size."""

Key = tuple[str, str]


def main(seeds=6, jobs=3, name=""):
    faults = [fault for fault in (*FAULTS, SOUND) if re.search(name, fault.name)]
    with ProcessPoolExecutor(jobs) as pool:
        trials = [(fault, n, seed) for fault in faults for n in SIZES for seed in range(seeds)]
        found = dict(
            zip(
                [(f.name, n, s) for f, n, s in trials],
                pool.map(_one, trials, chunksize=4),
                strict=True,
            )
        )
        smoke = dict(zip((fault.name for fault in faults), pool.map(_smoked, faults), strict=True))
    print(
        f"{seeds} seeds; a number is the fewest prompts at which it was said in {SURE:.0%} of them"
    )
    columns = [*NAMES, "smoke"]
    print(f"| fault | {' | '.join(columns)} |\n{'|---' * (1 + len(columns))}|")
    said = {}
    rare = {}
    for fault in faults:
        counts = defaultdict(lambda: dict.fromkeys(SIZES, 0))
        sentences = said.setdefault(fault.name, {})
        for n in SIZES:
            for seed in range(seeds):
                for key in dict.fromkeys(
                    (one.detector, one.name) for one in found[fault.name, n, seed]
                ):
                    counts[key][n] += 1
                for one in found[fault.name, n, seed]:
                    sentences[one.detector, one.name] = one.said
        needed = {key: _needed(sizes, seeds) for key, sizes in counts.items()}
        rare[fault.name] = {
            key: sum(counts[key].values()) for key, told in needed.items() if not told
        }
        cells = [
            ", ".join(f"{name} {told}" for (by, name), told in needed.items() if by == who and told)
            or "-"
            for who in NAMES
        ]
        print(f"| {fault.name} | {' | '.join([*cells, smoke[fault.name]])} |")
    print()
    for told, sentences in said.items():
        print(f"{told}")
        for key, sentence in sentences.items():
            seldom = (
                f" (in {rare[told][key]} of {len(SIZES) * seeds} trials)"
                if key in rare[told]
                else ""
            )
            print(f"  {key[0]}, {key[1]}: {sentence}{seldom}")


def _needed(by_size, seeds):
    """Return the fewest prompts that sufficed in SURE of the seeds.

    Otherwise return how often the largest number did, or nothing if it mostly did not.
    """
    for n, count in by_size.items():
        if count >= SURE * seeds:
            return str(n)
    most = max(by_size, key=lambda n: by_size[n])
    return f"({by_size[most]} of {seeds} at {most})" if by_size[most] >= seeds / 2 else ""


def _one(trial):
    fault, n, seed = trial
    with tempfile.TemporaryDirectory() as folder:
        return findings(tried(fault, n, seed, Path(folder) / "out", samples=min(n, SAMPLES)))


def _smoked(fault):
    done = smoked(fault, 0)
    failed = [row.name for row in done.rows if row.outcome == "FAIL"]
    return f"{', '.join(failed)} ({done.requests} requests)" if failed else "-"


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]), *sys.argv[3:4])
