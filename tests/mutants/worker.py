"""Run tests in forks of a process that has already imported third-party packages.

The command is `python -m tests.mutants.worker`. It reads one job per line on stdin and writes its
outcome as a line on stdout. A job names files to write before the fork and to restore after it,
tests by their ids, and a time limit. Nothing of ours is imported before the fork, so that a fork
sees the current files.

The worker is the first process of its own PID and network namespace with only loopback
(`isolated`): a mutant that ends unknown processes, such as by kill(-1), ends none outside, and
leftovers are killed with the namespace. PID 1 cannot be killed from inside.
"""

import fcntl
import importlib
import json
import os
import resource
import shutil
import signal
import socket
import struct
import sys
import time
import traceback
from contextlib import suppress
from pathlib import Path

OF_OTHERS = (
    "aiohttp.web",
    "httptools",
    "httpx",
    "hypothesis.strategies",
    "jsonschema",
    "msgspec",
    "numpy.random",
    "pytest",
    "rich.console",
    "rich.table",
    "scipy.integrate",
    "scipy.optimize",
    "scipy.special",
    "scipy.stats",
    "typer",
    "uvloop",
    "yaml",
)
MEMORY_BYTES = 8 << 30
"""Address space of a fork in bytes: a mutant may ask for any amount."""
SIOCSIFFLAGS, IFF_UP, IFF_RUNNING = 0x8914, 0x1, 0x40


def isolated(command):
    """Wrap the command in its own namespaces; None if this system gives none."""
    unshare = shutil.which("unshare")
    own = ["--user", "--map-root-user"] if os.geteuid() else []
    given = [unshare or "", *own, "--pid", "--fork", "--mount-proc", "--net", "--kill-child", "--"]
    if unshare is None or os.spawnvp(os.P_WAIT, unshare, [*given, "true"]):
        return None
    return [*given, *command]


def main():
    if os.getpid() == 1:
        with socket.socket() as any_socket:
            request = struct.pack("16sh14x", b"lo", IFF_UP | IFF_RUNNING)
            fcntl.ioctl(any_socket, SIOCSIFFLAGS, request)
    for name in OF_OTHERS:
        with suppress(ImportError):
            importlib.import_module(name)
    outcomes = os.fdopen(os.dup(1), "w", buffering=1)
    for line in sys.stdin:
        outcomes.write(json.dumps(_done(json.loads(line))) + "\n")


def _done(job):
    originals = {Path(path): Path(path).read_bytes() for path in job["files"]}
    log = Path(job["log"])
    started = time.monotonic()
    try:
        for path, code in job["files"].items():
            _write(Path(path), code.encode())
        pid = os.fork()
        if pid == 0:
            _test(job, log)
        status = _waited(pid, job["limit_s"])
    finally:
        for path, content in originals.items():
            _write(path, content)
    end = log.read_text(errors="replace")[-2000:] if log.exists() else ""
    return {"status": status, "seconds": time.monotonic() - started, "output": end}


def _write(path, content):
    # Compiled code is identified by the second and the size of its source, which a mutant may
    # share.
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    path.write_bytes(content)


def _waited(pid, limit_s):
    """Return the exit status of the fork, None if its time ran out.

    No process of it is left.
    """
    deadline, status = time.monotonic() + limit_s, None
    while time.monotonic() < deadline:
        found, ended = os.waitpid(pid, os.WNOHANG)
        if found:
            status = os.waitstatus_to_exitcode(ended)
            break
        time.sleep(0.01)
    with suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    if os.getpid() == 1:  # all processes of this namespace except this one
        with suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)
    with suppress(ChildProcessError):
        while os.waitpid(-1, 0 if os.getpid() == 1 else os.WNOHANG) != (0, 0):
            pass
    return status


def _test(job, log):
    code = 3
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with log.open("wb") as file:
            for number in (1, 2):
                os.dup2(file.fileno(), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.dont_write_bytecode = False  # that of a changed file is removed with the change
        import pytest

        from tests.mutants.plugins import Chosen, Traced

        plugin = Chosen(job["tests"]) if job["trace"] is None else Traced(Path(job["trace"]))
        options = [
            "-q",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "--hypothesis-seed=0",
            "--tb=line",
        ]
        options += [
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
        ]  # imported by the worker
        options += ["-m", "not slow"] if job["trace"] else ["-x"]
        code = int(pytest.main([*options, *job["paths"]], plugins=[plugin]))
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    main()
