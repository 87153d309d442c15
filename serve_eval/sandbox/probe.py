"""Find the strongest isolation that works on this machine, by a probe that runs in the sandbox."""

from __future__ import annotations

import os
import pwd
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from serve_eval.errors import SandboxError
from serve_eval.sandbox import LIMITS, OUTPUT_BYTES, SCRATCH_BYTES, Interpreter, Sandbox
from serve_eval.sandbox.isolation import FILES, ISOLATIONS, MEMORY_BYTES, SYSTEM, Wrap
from serve_eval.schema import ExitReason, Isolation, Program

UNUSED_UIDS = range(61184, 65520)
"""User ids that systemd assigns to services temporarily (its dynamic users), which own nothing on
disk."""
NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
"""Namespaces that a program must not share with this machine."""
PROBE_S = 20.0
_OWN_PROCESSES = 2
"""Processes of the sandbox: its first process and the program."""
_HINT = (
    "Install bubblewrap (apt-get install bubblewrap), and allow user namespaces: inside a container"
    " they need --privileged or a seccomp profile that permits them. Or run serve-eval on another"
    " Linux machine that reaches the endpoint. See docs/own-questions.md."
)
_SYSTEM = {*(place.split("/")[1] for place in SYSTEM), "proc", "dev", "tmp"}
_LOOK = """
import json, os, resource, socket, sys
def possible(action):
    try:
        action()
    except OSError:
        return False
    return True
def write(folder):
    with open(folder + "/probe", "w"):
        pass
    os.unlink(folder + "/probe")
mounts = {line.split()[1] for line in open("/proc/self/mounts")}
folders = {"/", "/proc", "/proc/sys", *mounts, *("/" + name for name in os.listdir("/"))}
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
environment = open("/proc/self/environ")
inside, outside, _ = map(int, open("/proc/self/uid_map").read().split())
print(json.dumps({
    "network": [
        line.split(":")[0].strip() for line in open("/proc/self/net/dev").readlines()[2:]
    ] != ["lo"],
    "namespaces": [os.readlink("/proc/self/ns/" + name) for name in os.listdir("/proc/self/ns")],
    "filtered": status["Seccomp"].strip() == "2"
    and not possible(lambda: socket.socket(socket.AF_INET)),
    "overseen": not possible(lambda: open("/proc/1/mem")),
    "last": open("/proc/self/oom_score_adj").read() != "1000\\n"
    or possible(lambda: open("/proc/self/oom_score_adj", "w")),
    "writable": sorted(folder for folder in folders if possible(lambda: write(folder))),
    "privileged": any(int(status[name], 16) for name in ("CapEff", "CapPrm", "CapBnd"))
    or status["NoNewPrivs"].strip() != "1",
    "uid": os.getuid() - inside + outside,
    "processes": sum(name.isdigit() for name in os.listdir("/proc")),
    "environment": sorted(
        {line.split("=")[0] for line in environment.read().split("\\0")} - {"", "PWD"}
    ),
    "root": os.listdir("/"),
    "etc": os.listdir("/etc"),
    "limits": {name: resource.getrlimit(getattr(resource, "RLIMIT_" + name))[1] for name in LIMITS},
    "python": ".".join(map(str, sys.version_info[:3])),
}))
"""


class _Seen(msgspec.Struct):
    """The findings of the probe.

    `root` and `etc` are the names in / and /etc. `uid` is the user outside of the namespace.
    `filtered` means that system calls are refused. `overseen` means that the program cannot read
    its checker. `last` means that the kernel may kill other processes before it if memory runs out.
    """

    network: bool
    namespaces: list[str]
    filtered: bool
    overseen: bool
    last: bool
    writable: list[str]
    privileged: bool
    uid: int
    processes: int
    environment: list[str]
    root: list[str]
    etc: list[str]
    limits: dict[str, int]
    python: str


async def strongest(
    *, at_once: int | None = None, isolations: Mapping[str, Wrap] = ISOLATIONS
) -> tuple[Sandbox, Isolation]:
    """Return a sandbox with the first isolation that works, and the findings of its probe.

    As root, it uses an unused user. `at_once` defaults to the number of available processors.
    Raises SandboxError with the reasons if no isolation works.
    """
    if not sys.platform.startswith("linux"):
        raise SandboxError("generated code runs only on Linux", hint=_HINT)
    uid = _find_unused_uid() if os.geteuid() == 0 else None
    reasons = []
    for name, wrap in isolations.items():
        for interpreter in _interpreters(dropping=uid is not None):
            try:
                sandbox = Sandbox(
                    wrap, interpreter, uid=uid, at_once=at_once or len(os.sched_getaffinity(0))
                )
                return sandbox, await _look(
                    name, sandbox, interpreter, os.getuid() if uid is None else uid
                )
            except SandboxError as error:
                reasons.append(f"{name} with {interpreter.path}: {error}")
    found = (
        "".join(f"\n  {reason}" for reason in reasons)
        or "\n  no Python that other users may run was found"
    )
    raise SandboxError(f"generated code cannot be isolated on this machine:{found}", hint=_HINT)


async def _look(name: str, sandbox: Sandbox, interpreter: Interpreter, uid: int) -> Isolation:
    program = Program(code=f"LIMITS = {sorted(LIMITS)!r}\n{_LOOK}", wall_s=PROBE_S)
    ran = await sandbox.run(program)
    if ran.ended is not ExitReason.PASSED:
        said = ran.stderr.strip().rpartition("\n")[2]
        raise SandboxError(
            f"the probe ended as {ran.ended.value} ({ran.exit}): {said[:300] or 'no output'}"
        )
    seen = msgspec.json.decode(ran.stdout, type=_Seen)
    ours = {str(Path(f"/proc/self/ns/{name}").readlink()) for name in NAMESPACES}
    strange = {*seen.root} - _SYSTEM - {place.split("/")[1] for place in interpreter.readable}
    problems = [
        *(["it reaches a network"] if seen.network else []),
        *(
            f"it shares {one.partition(':')[0]} with this machine"
            for one in seen.namespaces
            if one in ours
        ),
        *([] if seen.filtered else ["its system calls are not filtered"]),
        *([] if seen.overseen else ["it can read the memory of its checker"]),
        *(["the kernel kills others first if memory runs out"] if seen.last else []),
        *(f"it can write to {folder}" for folder in seen.writable if folder != "/tmp"),  # noqa: S108
        *(["it has capabilities, or can get them"] if seen.privileged else []),
        *([f"it runs as user {seen.uid}"] if seen.uid != uid else []),
        *(["it sees other processes"] if seen.processes > _OWN_PROCESSES else []),
        *([f"it has an environment: {', '.join(seen.environment)}"] if seen.environment else []),
        *(
            f"it sees {path}"
            for path in (*(f"/{one}" for one in strange), *(f"/etc/{one}" for one in seen.etc))
            if path != "/etc/ld.so.cache"
        ),
        *([f"its limits are {seen.limits}"] if seen.limits != dict(LIMITS) else []),
    ]
    if problems:
        raise SandboxError("; ".join(problems))
    return Isolation(
        name=name,
        network=seen.network,
        writable=tuple(seen.writable),
        uid=seen.uid,
        python=seen.python,
        limits={
            **seen.limits,
            "SCRATCH": SCRATCH_BYTES,
            "OUTPUT": OUTPUT_BYTES,
            "MEMORY": MEMORY_BYTES,
            "FILES": FILES,
        },
    )


def _interpreters(*, dropping: bool) -> Iterator[Interpreter]:
    """Yield our own Python without our packages, then those of the system.

    As an unused user, yield only those that every user may run.
    """
    own = Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    prefix = Path(sys.base_prefix).resolve()
    readable = () if prefix.is_relative_to("/usr") else (str(prefix),)
    if own.is_relative_to(prefix) and not (dropping and not _open_to_all(own)):
        yield Interpreter(str(own), readable)
    for path in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(path).exists() and os.path.realpath(path) != str(own):
            yield Interpreter(path)


def _open_to_all(path: Path) -> bool:
    return all(place.stat().st_mode & stat.S_IXOTH for place in (path, *path.parents))


def _find_unused_uid() -> int:
    """Return a user id without name and processes. Raises SandboxError if there is none."""
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for place in Path("/proc").iterdir():
        with suppress(FileNotFoundError):  # the process may end meanwhile
            taken.add(place.stat().st_uid)
    free = next((uid for uid in UNUSED_UIDS if uid not in taken), None)
    if free is None:
        raise SandboxError("no unused user id is left to run generated code")
    return free
