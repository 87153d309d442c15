"""Measure a fleet on loopback, one of whose servers is requantised: `python -m` this, with COUNT.

It prints what `serve-eval verify --fleet` prints at 80 columns. The servers are scripted ones in
one process, so the time is mostly theirs.
"""

import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.cli.command import serve_eval
from tests.workflows.verify.model_server import ModelServer

COUNT, BAD = 64, 17
REQUANTISED = 0.2
"""Standard deviation, in nats, that gives the median distance of four-bit weights."""


def measure(count):
    """Return what a verification of `count` servers prints."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        servers = [
            ModelServer(name=f"s{i}", numerics=REQUANTISED if i == BAD % count else 0.0)
            for i in range(count)
        ]
        lines = [
            f"pod-{i} {stack.enter_context(one.server.serve_in_thread())}\n"
            for i, one in enumerate(servers)
        ]
        (file := folder / "fleet.txt").write_text("".join(lines))
        words = f"--model m --floor 0.08 -o {folder}/out"
        ran = serve_eval(f"verify --fleet --servers {file} {words}", COLUMNS="80")
        return ran.stdout + ran.stderr


if __name__ == "__main__":
    print(measure(int(sys.argv[1]) if len(sys.argv) > 1 else COUNT))
