"""Run a script within limits of memory and processor time: `python -P limited_start.py ...`.

It imports nothing of serve-eval, so that it starts in milliseconds and wherever that is installed.
The arguments are the bytes of memory, the seconds of processor time, and the script.
"""

from __future__ import annotations

import resource
import runpy
import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Set the limits, which can only be lowered, and run the script."""
    memory, seconds, script = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    # Not RLIMIT_AS: V8 reserves 64 GiB of addresses and uses a hundredth of them.
    for kind, wanted in (
        (resource.RLIMIT_DATA, memory),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_CORE, 0),
    ):
        with suppress(OSError, ValueError):
            resource.setrlimit(kind, (_lower(wanted, kind), resource.getrlimit(kind)[1]))
    # If memory runs out, the kernel ends this process and not the one that has the verdict.
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000")
    sys.argv[:] = sys.argv[3:]
    runpy.run_path(script, run_name="__main__")


def _lower(wanted: int, kind: int) -> int:
    """Return a limit that is not above those that are set."""
    known = [one for one in resource.getrlimit(kind) if one != resource.RLIM_INFINITY]
    return min([wanted, *known])


if __name__ == "__main__":
    main()
