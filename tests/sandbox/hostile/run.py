"""Define hostile programs, and run them with something to find outside."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import platform
import re
import secrets
import socket
import subprocess
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path

from serve_eval.sandbox import Sandbox
from serve_eval.sandbox.seccomp import ABSENT, CLONE, IOCTL, PRLIMIT, REFUSED, SOCKET
from serve_eval.schema import ExecutionResult, ExitReason, Program

_COLUMN = 1 if platform.machine() == "aarch64" else 0
CALLS = {name: numbers[_COLUMN] for name, numbers in {**REFUSED, **ABSENT}.items()} | {
    "clone": CLONE[_COLUMN],
    "ioctl": IOCTL[_COLUMN],
    "prlimit64": PRLIMIT[_COLUMN],
    "socket": SOCKET[_COLUMN],
}
PRELUDE = f"""
import ctypes, errno, os, sys, time
CALLS = {CALLS!r}
libc = ctypes.CDLL(None, use_errno=True)
def out(*what):
    print("OUT:", *what, flush=True)
def stopped(*why):
    print("stopped:", *why, flush=True)
def kernel(name, *args):
    result = libc.syscall(ctypes.c_long(CALLS[name]), *(ctypes.c_long(x) if isinstance(x, int) else x for x in args))
    code = ctypes.get_errno()
    out(name, "gave", result) if result >= 0 else stopped(name + ":", errno.errorcode[code])
    return result
def attempt(action, *args):
    try:
        return action(*args)
    except BaseException as error:
        stopped(type(error).__name__, errno.errorcode.get(getattr(error, "errno", None), ""))
"""  # noqa: E501


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A program with what it tries and what has to stop it.

    It prints `OUT:` with what it got, and `stopped:` with the error that it met. The `SECRET`
    within it is never a text that it may know: printing it means that it got out. `by` is a pattern
    that each of its `stopped:` lines matches, or, if it prints none, the way in which it ended. Its
    `checks` are false, unless it has none: passing means that it forged the result. `finds` are
    places of the host that replace their names in braces.
    """

    name: str
    tries: str
    code: str
    by: str
    checks: str = ""
    wall_s: float = 10.0
    machines: tuple[str, ...] = ("x86_64", "aarch64")


SESSION, USER = -3, -4
ADD_KEY, KEYCTL = CALLS["add_key"], CALLS["keyctl"]
JOIN, SEARCH = 1, 10
AT_ONCE = 4
"""Number of programs at a time; some wait for their time limit."""
_ERROR = re.compile(r"^(?:[\w.]+\.)?(\w+(?:Error|Exit|Exception|Refused|Over))\b", re.MULTILINE)
"""Pattern of the last line of a traceback."""


@dataclass(slots=True)
class Outside:
    """The targets outside, and those that report being reached."""

    secret: str
    places: dict[str, object]
    decoy: subprocess.Popen[bytes]
    listeners: list[socket.socket] = field(default_factory=list)

    def reached(self):
        """Everything that got out, as seen from here."""
        found = []
        for listener in self.listeners:
            with contextlib.suppress(BlockingIOError):
                listener.accept()[0].close()
                found.append(f"connected to {listener.getsockname()!r}")
        if self.decoy.poll() is not None:
            found.append("ended a process")
        if any(
            _syscall(KEYCTL, SEARCH, ring, b"user", self._key("planted"), 0) >= 0
            for ring in (SESSION, USER)
        ):
            found.append("left a key")
        return found + [f"process {pid} lives on" for pid in self._marked()]

    def _key(self, name):
        key = self.places[name]
        assert isinstance(key, bytes)
        return key

    def _marked(self):
        mark, found = str(self.places["mark"]).encode(), []
        for place in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if place.name.isdigit() and (place / "cmdline").read_bytes().startswith(mark):
                    found.append(int(place.name))
        return found


@contextlib.contextmanager
def outside(uid):
    """Provide targets to find.

    The decoy is a process of the user that runs the programs. If the kernel allows it, this thread
    gets its own session keyring with a key in it.
    """
    secret = secrets.token_hex(12)
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.chmod(0o755)
        at_home = stack.enter_context(
            tempfile.NamedTemporaryFile("w", dir=Path.home() if _writable() else folder)
        )
        at_home.write(secret)
        at_home.flush()
        (folder / "secret").write_text(secret)
        (folder / "secret").chmod(0o644)
        abstract = f"\0serve-eval-{secrets.token_hex(8)}"
        tcp = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        unix = [stack.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(2)]
        for server, address in zip(unix, (abstract, str(folder / "socket")), strict=True):
            server.bind(address)
            server.listen()
        (folder / "socket").chmod(0o777)
        for server in (tcp, *unix):
            server.setblocking(False)
        os.environ["SERVE_EVAL_HOSTILE_SECRET"] = secret
        stack.callback(os.environ.pop, "SERVE_EVAL_HOSTILE_SECRET")
        mine = os.open(folder, os.O_RDONLY)
        os.set_inheritable(mine, True)
        stack.callback(os.close, mine)
        drop = (
            ["setpriv", "--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
            if os.geteuid() == 0
            else []
        )
        decoy = stack.enter_context(subprocess.Popen([*drop, "/bin/sleep", "600"]))
        stack.callback(decoy.kill)
        key, planted = f"key-{secret}".encode(), f"planted-{secrets.token_hex(8)}".encode()
        if _syscall(KEYCTL, JOIN, None) >= 0:
            _syscall(ADD_KEY, b"user", key, secret.encode(), len(secret), SESSION)
        places = {
            "tcp": tcp.getsockname()[1],
            "abstract": abstract,
            "unix": str(folder / "socket"),
            "file": str(folder / "secret"),
            "home": at_home.name,
            "harness": os.getpid(),
            "decoy": decoy.pid,
            "mark": f"mark{secrets.token_hex(12)}",
            "key": b"key-",
            "planted": planted,
        }
        yield Outside(secret=secret, places=places, decoy=decoy, listeners=[tcp, *unix])


def _writable():
    return os.access(Path.home(), os.W_OK)


def _syscall(number, *args):
    libc = ctypes.CDLL(None, use_errno=True)
    shown = [ctypes.c_long(one) if isinstance(one, int) else one for one in args]
    return int(libc.syscall(ctypes.c_long(number or -1), *shown))


@dataclass(frozen=True, slots=True)
class Result:
    """The outcome of an attempt.

    `got_out` is the evidence (None: there is none), `stopped_by` is what it met, and `as_meant`
    says whether that is what has to stop it.
    """

    attempt: Attempt
    ran: ExecutionResult
    got_out: str | None
    stopped_by: str
    as_meant: bool


async def _one(sandbox, attempt, found):
    code = PRELUDE + attempt.code.format(**found.places)
    program = Program(
        code=code,
        checks=attempt.checks.replace("SECRET", found.secret),
        stdin="",
        wall_s=attempt.wall_s,
    )
    ran = await sandbox.run(program)
    said = ran.stdout + ran.stderr
    evidence = [line for line in ran.stdout.splitlines() if line.startswith("OUT:")]
    if found.secret in said:
        evidence.append("the secret was told")
    if attempt.checks and ran.ended is ExitReason.PASSED:
        evidence.append("passed false checks")
    stops = sorted(
        {line[9:].strip() for line in ran.stdout.splitlines() if line.startswith("stopped:")}
    )
    _, ended_by_us, excess = ran.stderr.strip().rpartition("serve-eval ended this program: ")
    reason = str(ran.exit) if ran.exit is not None else excess if ended_by_us else ""
    if ran.ended is ExitReason.RAISED:
        reason = ([*_ERROR.findall(ran.stderr)] or ["of nothing known"])[-1]
    ended = f"{ran.ended.value} {reason}".strip()
    met = stops or [ended]
    meant = all(re.search(attempt.by, one) for one in met)
    return Result(attempt, ran, "; ".join(evidence) or None, "; ".join(met), meant)


def run_all(sandbox, isolation, attempts):
    """Run all attempts, and return also which targets were reached in the end.

    They run in a separate thread, whose keyring may change.
    """
    told = []

    async def all_of_them(found):
        here = Sandbox(sandbox.wrap, sandbox.interpreter, uid=sandbox.uid, at_once=AT_ONCE)
        return list(await asyncio.gather(*(_one(here, attempt, found) for attempt in attempts)))

    def work():
        with outside(isolation.uid) as found:
            told.append((asyncio.run(all_of_them(found)), found.reached()))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return told[0]


def table(results):
    """Return what stopped each attempt, as lines."""
    lines = [f"{'program':<22} what it tries  ->  what stopped it"]
    for result in results:
        mark = "GOT OUT" if result.got_out else "stopped" if result.as_meant else "OTHERWISE"
        shown = result.got_out or result.stopped_by
        lines.append(
            f"{result.attempt.name:<22} {mark:<9} {result.attempt.tries}  ->  {shown[:110]}"
        )
    return "\n".join(lines)
