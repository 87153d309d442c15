"""Build the command lines that isolate a program, for each isolation, the strongest first.

Each isolation gives a program its own user, process, network, IPC and mount namespaces, where it
has no capabilities and cannot create namespaces. It has only its own loopback network, and it
cannot see or signal other processes. It can read only the system's libraries and its interpreter,
and write only to an empty /tmp of limited size. The command is the first process in the namespaces:
signals from within do not reach it, and when it ends, the kernel kills all others.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
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
