"""Try to escape from the sandbox with hostile programs, and print what stopped each.

`python -m tests.sandbox.hostile namespaces` does so under one isolation (default: all). It exits
with 1 if one got out.
"""

import asyncio
import os
import platform
import sys

from serve_eval.sandbox.isolation import ISOLATIONS
from serve_eval.sandbox.probe import strongest
from tests.sandbox.hostile.forging import FORGING
from tests.sandbox.hostile.reaching import REACHING
from tests.sandbox.hostile.run import run_all, table
from tests.sandbox.hostile.taking import HIDING, TAKING

ATTEMPTS = [
    one for one in (*REACHING, *TAKING, *HIDING, *FORGING) if platform.machine() in one.machines
]
"""All hostile programs of this machine."""


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
