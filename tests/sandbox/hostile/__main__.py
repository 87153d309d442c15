"""Print what stopped each hostile program under the named isolations (default: all).

Exits with 1 if one got out.
"""

import asyncio
import os
import sys

from serve_eval.sandbox.isolation import ISOLATIONS
from serve_eval.sandbox.probe import strongest
from tests.sandbox.hostile.run import run_all, table
from tests.sandbox.hostile.table import ATTEMPTS


def main(names):
    """Run the table under each isolation."""
    failed = 0
    for name in names or list(ISOLATIONS):
        sandbox, isolation = asyncio.run(strongest(at_once=2, isolations={name: ISOLATIONS[name]}))
        results, reached = run_all(sandbox, isolation, ATTEMPTS)
        out = [one for one in results if one.got_out] + [
            one for one in results if not one.got_out and not one.as_meant
        ]
        print(
            f"{name}, started by the user {os.getuid()}, run as the user"
            f" {isolation.uid}\n{table(results)}"
        )
        print(
            f"{len(results)} programs, {len(out)} not stopped as meant; reached outside:"
            f" {reached or 'nothing'}\n"
        )
        failed += len(out) + len(reached)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
