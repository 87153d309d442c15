"""Isolate a program by command lines, and limit the memory and files of its processes.

Each isolation gives a program its own user, process, network, IPC and mount namespaces, where it
has no capabilities and cannot create namespaces. It has only its own loopback network, and it
cannot see or signal other processes. It can read only the system's libraries and its interpreter,
and write only to an empty /tmp of limited size. The command is the first process in the namespaces:
signals from within do not reach it, and when it ends, the kernel kills all others.

It checks at intervals. Between two checks, a program may use more, up to the limit per process for
each process. Pages that a process shares with one that is just ending count in part, since the
ending process no longer reports its share.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from serve_eval.errors import SandboxError

Wrap = Callable[[Sequence[str], Sequence[str], int], list[str]]
"""Command line, readable folders, bytes of its /tmp -> the command line that runs it isolated."""

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/ld.so.cache")
"""Parts of the system that an interpreter may need. Most are now links into /usr."""
DEVICES = ("/dev/null", "/dev/random", "/dev/urandom")
"""Device files of the sandbox. /dev/zero is missing, because a shared mapping of it is memory that
no process accounts for."""
MASKED = ("/proc/keys", "/proc/key-users")
"""Files in which the kernel lists the keys of a user, by name, for each of its programs. They are
empty in the sandbox."""
FILES = 8192
"""Maximum number of files and folders in its /tmp."""


def bubblewrap(command: Sequence[str], readable: Sequence[str], scratch: int) -> list[str]:
    """Isolate by bubblewrap (package bubblewrap in Debian, Ubuntu and Fedora).

    Raises SandboxError if it is not installed.
    """
    options = [
        "--unshare-all",
        "--unshare-user",
        "--disable-userns",
        "--as-pid-1",
        "--die-with-parent",
        "--clearenv",
    ]
    for path in _present(readable):
        link = _link(path)
        options += ["--ro-bind", path, path] if link is None else ["--symlink", link, path]
    options += ["--proc", "/proc", "--dir", "/dev"]
    for device in DEVICES:
        options += ["--dev-bind", device, device]
    for place in filter(os.path.exists, MASKED):
        options += ["--ro-bind", "/dev/null", place]
    options += ["--size", str(scratch), "--tmpfs", "/tmp", "--chdir", "/tmp"]  # noqa: S108
    options += ["--remount-ro", "/proc", "--remount-ro", "/"]
    return [_tool("bwrap", "bubblewrap"), *options, "--", *command]


def namespaces(command: Sequence[str], readable: Sequence[str], scratch: int) -> list[str]:
    """Isolate only by unshare and mount of util-linux.

    Raises SandboxError if they are not installed.
    """
    lines = [
        "set -e",
        "mount -t tmpfs -o nosuid,nodev,size=1m,mode=755 sandbox /tmp",
        "cd /tmp",
        "mkdir proc dev tmp old",
    ]
    for path in _present(readable):
        link, place = _link(path), shlex.quote("." + path)
        if link is not None:
            lines.append(f"ln -s {shlex.quote(link)} {place}")
            continue
        lines.append(
            f"mkdir -p {place}"
            if Path(path).is_dir()
            else f"mkdir -p $(dirname {place}); : > {place}"
        )
        lines.append(f"mount -o bind,ro,nosuid,nodev {shlex.quote(path)} {place}")
    for device in DEVICES:
        lines += [f": > .{device}", f"mount --bind {device} .{device}"]
    lines += [
        "mount -t proc -o nosuid,nodev,noexec proc proc",
        *(f"mount --bind dev/null .{place}" for place in MASKED if Path(place).exists()),
        "echo 0 > proc/sys/user/max_user_namespaces",
        f"mount -t tmpfs -o nosuid,nodev,size={scratch},nr_inodes={FILES},mode=755 scratch tmp",
        "pivot_root . old",
        "umount -l /old",
        "rmdir /old",
        "mount -o remount,bind,ro,nosuid,nodev,noexec /proc",
        "mount -o remount,bind,ro,nosuid,nodev /",
        "cd /tmp",
        'exec env -i setpriv --bounding-set=-all --inh-caps=-all --no-new-privs -- "$@"',
    ]
    apart = [
        "--user",
        "--map-root-user",
        "--mount",
        "--propagation",
        "private",
        "--pid",
        "--fork",
        "--kill-child",
    ]
    _tool("setpriv", "util-linux")
    options = [*apart, "--net", "--ipc", "--uts", "--cgroup"]
    return [
        _tool("unshare", "util-linux"),
        *options,
        "--",
        "/bin/sh",
        "-c",
        "\n".join(lines),
        "sh",
        *command,
    ]


ISOLATIONS: dict[str, Wrap] = {"bubblewrap": bubblewrap, "namespaces": namespaces}


def as_user(command: Sequence[str], uid: int | None) -> list[str]:
    """Return the command line as another user (None: as the current one).

    The process dies when this one does, and the kernel kills it first if memory runs out.
    """
    drop = [] if uid is None else ["--reuid", str(uid), "--regid", str(uid), "--clear-groups"]
    first = ["/bin/sh", "-c", 'echo 1000 > /proc/self/oom_score_adj && exec "$@"', "sh"]
    return [
        *first,
        _tool("setpriv", "util-linux"),
        *drop,
        "--no-new-privs",
        "--pdeathsig",
        "KILL",
        "--",
        *command,
    ]


def _present(readable: Sequence[str]) -> list[str]:
    return [path for path in (*SYSTEM, *readable) if os.path.lexists(path)]


def _link(path: str) -> str | None:
    """Return the target of a system link, such as usr/lib for /lib, or None if it is not a link."""
    return str(Path(path).readlink()) if Path(path).is_symlink() else None


def _tool(name: str, package: str) -> str:
    found = shutil.which(
        name, path="/usr/bin:/bin:/usr/sbin:/sbin:/usr/local/bin:" + os.environ.get("PATH", "")
    )
    if found is None:
        raise SandboxError(f"{name} is not installed (package {package})")
    return found


MEMORY_BYTES = 768 << 20
"""Limit for all processes and the /tmp of a program together, unless the program has another."""
LOOK_S = 0.025
"""Seconds between two checks of a program if up to four run at a time. With more programs the
interval is longer, so that checks stay cheap."""
_SCRATCH = "root/tmp"
_OWN = ("RssAnon", "RssShmem", "VmSwap", "VmPTE")
_SHARED_OUT = ("Pss_Anon", "Pss_Shmem", "SwapPss")
"""Names of /proc/PID/status, which is quick to read but counts shared pages for each process, and
of smaps_rollup, which counts the share of each."""


def excess(front: int, scratch: int, memory: int = MEMORY_BYTES) -> str | None:
    """Return the limit that a process tree exceeds, in words, or None if it exceeds none.

    `front` is the first process of the tree, and `memory` the limit in bytes. `scratch` is the size
    of the program's /tmp in bytes, which identifies it. Raises SandboxError if the kernel shows no
    tree.
    """
    if not Path("/proc/self/task").joinpath(str(os.getpid()), "children").exists():
        raise SandboxError(
            "the kernel does not list the children of a process (CONFIG_PROC_CHILDREN)"
        )
    processes = list(_tree(front))
    in_files, files = next(
        filter(None, (_scratch(pid, scratch) for pid in reversed(processes))), (0, 0)
    )
    if files > FILES:
        return f"it made {files} files; the limit is {FILES}"
    if in_files + sum(_bytes(pid, "status", _OWN) for pid in processes) <= memory:
        return None
    taken = in_files + sum(_bytes(pid, "smaps_rollup", _SHARED_OUT) for pid in processes)
    if taken <= memory:
        return None
    return f"its processes took {taken >> 20} MiB together; the limit is {memory >> 20} MiB"


def _tree(pid: int) -> Iterator[int]:
    yield pid
    children: list[str] = []
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            children += (task / "children").read_text("ascii").split()
    for child in children:
        yield from _tree(int(child))


def _bytes(pid: int, file: str, names: tuple[str, ...]) -> int:
    """Return the sum of a process's values under these names.

    A process that can no longer be read has none.
    """
    for thread in _threads(pid):
        with suppress(OSError, ValueError):
            said = Path(f"/proc/{thread}/{file}").read_text("ascii", "replace").splitlines()
            found = [line.split()[1] for line in said if line.partition(":")[0] in names]
            if found:
                return sum(int(kib) << 10 for kib in found)
    return 0


def _threads(pid: int) -> Iterator[int]:
    """Yield a process by each of its threads.

    The first thread may have ended while others run, and then has no values.
    """
    yield pid
    with suppress(OSError):
        yield from (int(task.name) for task in Path(f"/proc/{pid}/task").iterdir())


def _scratch(pid: int, size: int) -> tuple[int, int] | None:
    """Return the bytes and files in the /tmp of a process, or None if it is not the program's."""
    with suppress(OSError):
        seen = os.statvfs(f"/proc/{pid}/{_SCRATCH}")
        if seen.f_blocks * seen.f_frsize == size:
            return (seen.f_blocks - seen.f_bfree) * seen.f_frsize, seen.f_files - seen.f_ffree
    return None
