"""Attack runs as `make attack` does, and print the accounts.

First comes a server with every fault, then each proxy of `FRONTS`. The exit code is 1 if anything
was lost or wrong.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.attack.attack import FRONTS, attack


def main():
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
    accounts = [account, *_attack_by_proxies(told.seed, stream=not told.no_stream)]
    sys.exit(any(any((one.lost, one.doubled, one.swapped, one.changed)) for one in accounts))


def _attack_by_proxies(seed, *, stream):
    """Yield the account of a run of GSM8K's size behind each proxy, after printing it."""
    for name, (options, in_flight, kills) in FRONTS.items():
        with tempfile.TemporaryDirectory(prefix="serve-eval-attack-") as folder:
            account = attack(
                Path(folder),
                samples=1319,
                in_flight=in_flight,
                share=0.0,
                kills=kills,
                seed=seed,
                latency_s=0.03,
                stream=stream,
                front=options,
            )
        print(f"\nA proxy that {name}\n{account.table()}")
        yield account


if __name__ == "__main__":
    main()
