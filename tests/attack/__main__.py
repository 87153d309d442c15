"""Attack a run as `make attack` does, and print the account.

The exit code is 1 if anything was lost or wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from tests.attack.attack import attack


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=256)
    parser.add_argument("--share", type=float, default=0.1)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--latency-s", type=float, default=0.3)
    parser.add_argument("--faults", default="")
    parser.add_argument("--no-stream", action="store_true")
    told = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="serve-eval-attack-") as folder:
        account = attack(
            Path(folder),
            samples=told.samples,
            in_flight=told.in_flight,
            share=told.share,
            kills=told.kills,
            seed=told.seed,
            latency_s=told.latency_s,
            faults=told.faults,
            stream=not told.no_stream,
        )
    print(account.table())
    sys.exit(any((account.lost, account.doubled, account.swapped, account.changed)))


if __name__ == "__main__":
    main()
