"""The server of forks: it imports what programs need, and forks for each line of its input.

The launcher `simulated` has no process of its own in them.
"""

import gc
import importlib
import json
import os
import pkgutil
import runpy
import signal
import sys
import time

import serve_eval
from serve_eval.launchers import simulated
from tests.server_here import server_here

OTHERS = ("pytest", "_pytest.junitxml", "rich.table", "rich.text", "scipy.stats")
PARTS = ("cli", "evaluation", "report", "scorers", "stats", "verdicts", "workflows")
"""Packages of ours whose modules most programs import."""
PAUSE_S = 0.002


def main():
    """Answer each line, a JSON object with a program, by its exit code; null if it took too long.

    A fork returns from here with its program, so that its interpreter ends as that of any program.
    """
    _import_all()
    while line := sys.stdin.readline():
        asked = json.loads(line)
        if (child := os.fork()) == 0:
            _become(asked)
            return
        print(json.dumps(_wait_for(child, asked["timeout_s"])), flush=True)
    os._exit(0)


def _import_all():
    for name in OTHERS:
        importlib.import_module(name)
    for part in PARTS:
        package = importlib.import_module(f"serve_eval.{part}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    simulated.own_server = server_here
    serve_eval.__doc__ = f"{serve_eval.__doc__} PYTEST_DONT_REWRITE"  # or pytest would warn of it
    gc.freeze()


def _become(asked):
    """Take the folder, environment, streams and arguments of a program."""
    os.setpgid(0, 0)
    os.chdir(asked["folder"])
    os.environ.clear()
    os.environ.update(asked["env"])
    streams = [os.open(path, os.O_RDWR | os.O_APPEND) for path in (os.devnull, *asked["streams"])]
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.argv[:] = asked["program"]
    sys.path[0] = asked["folder"]


def _wait_for(child, timeout_s):
    """Return the exit code of a child as subprocess does; None if it had to be killed."""
    deadline = time.monotonic() + timeout_s
    while True:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return None
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
