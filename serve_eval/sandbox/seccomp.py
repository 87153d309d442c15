"""Build the filter of system calls for sandboxed programs (seccomp, classic BPF).

The filter refuses calls that a program without network, capabilities and namespaces does not need,
and in which most kernel faults were found: io_uring, bpf, keyrings, address families other than
local sockets, System V memory. It also refuses calls that hold memory that neither a process nor
/tmp accounts for, since no limit covers their total: files in memory (memfd), shared pages without
a file, file attributes, sockets that others can send to, and file watches. A call with the numbers
of another machine (32-bit, x32) ends the program. A call newer than this list fails as on a kernel
without it.
"""

from __future__ import annotations

import errno
import platform
import struct

from serve_eval.errors import SandboxError

X86_64, AARCH64 = 0, 1
REFUSED: dict[str, tuple[int | None, int | None]] = {
    # keyrings
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # work that the kernel does behind other filters
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    # other processes
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    # mounts and namespaces
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "setns": (308, 268),
    "unshare": (272, 97),
    # files past their folders
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "fanotify_mark": (301, 263),
    "lookup_dcookie": (212, 18),
    # memory that belongs to no process
    "shmget": (29, 194),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "msgget": (68, 186),
    "msgsnd": (69, 189),
    "msgctl": (71, 187),
    "semget": (64, 190),
    "semctl": (66, 191),
    "mq_open": (240, 180),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "landlock_create_ruleset": (444, 444),
    "landlock_add_rule": (445, 445),
    "landlock_restrict_self": (446, 446),
    "bind": (49, 200),
    "listen": (50, 201),
    "setsockopt": (54, 208),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    # where memory lies
    "mbind": (237, 235),
    "set_mempolicy": (238, 237),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "vmsplice": (278, 75),
    # the machine
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "syslog": (103, 116),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "uselib": (134, None),
}
"""Number on x86_64 and on aarch64 (None: no such call). These calls fail with EPERM."""
ABSENT: dict[str, tuple[int, int]] = {
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "clone3": (435, 435),
}
"""These calls fail with ENOSYS, so that libraries use the older call. A filter cannot read the
flags of clone3."""
LAST = 456
"""The newest call that was examined (futex_requeue, Linux 6.7). Later calls fail with ENOSYS."""
CLONE, SOCKET, SOCKETPAIR, PRLIMIT, IOCTL, MMAP = (
    (56, 220),
    (41, 198),
    (53, 199),
    (302, 261),
    (16, 29),
    (9, 222),
)
NEW_NAMESPACES = 0x7E020000
"""The flags of clone that create namespaces."""
SHARED, ANONYMOUS = 0x01, 0x20
"""Flags of mmap. Together they create memory that stays while any page of it is mapped, but is
accounted for as only that page."""
TERMINAL_INPUT = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX, which type into a terminal."""
_ARCHITECTURES = {"x86_64": (X86_64, 0xC000003E), "aarch64": (AARCH64, 0xC00000B7)}
_X32 = 0x40000000
ALLOW, KILL, FAIL = 0x7FFF0000, 0x80000000, 0x00050000
_LOAD, _EQUAL, _GREATER, _ANY_BIT, _RETURN = 0x20, 0x15, 0x25, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST, _SECOND, _FOURTH = 0, 4, 16, 24, 40
"""Offsets of the call number, the architecture, and the low halves of the arguments
(little-endian)."""


def build(machine: str = platform.machine()) -> bytes:
    """Return the filter of a machine as an array of struct sock_filter.

    Raises SandboxError for a machine without one.
    """
    if machine not in _ARCHITECTURES:
        raise SandboxError(
            f"there is no filter of system calls for {machine}",
            hint=f"Generated code runs only on {' and '.join(_ARCHITECTURES)}.",
        )
    column, architecture = _ARCHITECTURES[machine]
    lines = [_line(_LOAD, _ARCHITECTURE), _line(_EQUAL, architecture, 1, 0), _line(_RETURN, KILL)]
    lines.append(_line(_LOAD, _NUMBER))
    if column == X86_64:
        lines += [_line(_ANY_BIT, _X32, 0, 1), _line(_RETURN, KILL)]
    lines += [_line(_GREATER, LAST, 0, 1), _fail(errno.ENOSYS)]
    for code, calls in ((errno.ENOSYS, ABSENT.values()), (errno.EPERM, REFUSED.values())):
        for numbers in calls:
            if (number := numbers[column]) is not None:
                lines += [_line(_EQUAL, number, 0, 1), _fail(code)]
    local = [
        _line(_LOAD, _FIRST),
        _line(_EQUAL, 1, 1, 0),
        _fail(errno.EAFNOSUPPORT),
        _line(_RETURN, ALLOW),
    ]
    flags = [
        _line(_LOAD, _FIRST),
        _line(_ANY_BIT, NEW_NAMESPACES, 0, 1),
        _fail(errno.EPERM),
        _line(_RETURN, ALLOW),
    ]
    own = [_line(_LOAD, _FIRST), _line(_EQUAL, 0, 1, 0), _fail(errno.EPERM), _line(_RETURN, ALLOW)]
    typed = [_line(_LOAD, _SECOND)]
    for command in TERMINAL_INPUT:
        typed += [_line(_EQUAL, command, 0, 1), _fail(errno.EPERM)]
    typed.append(_line(_RETURN, ALLOW))
    pages = [
        _line(_LOAD, _FOURTH),
        _line(_ANY_BIT, ANONYMOUS, 0, 2),
        _line(_ANY_BIT, SHARED, 0, 1),
        _fail(errno.EPERM),
    ]
    pages.append(_line(_RETURN, ALLOW))
    special = (
        (SOCKET, local),
        (SOCKETPAIR, local),
        (CLONE, flags),
        (PRLIMIT, own),
        (IOCTL, typed),
        (MMAP, pages),
    )
    for numbers, body in special:
        lines += [_line(_EQUAL, numbers[column], 0, len(body)), *body]
    return b"".join([*lines, _line(_RETURN, ALLOW)])


def _line(code: int, operand: int, if_so: int = 0, if_not: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_so, if_not, operand)


def _fail(code: int) -> bytes:
    return _line(_RETURN, FAIL | code)


def keyctl(machine: str = platform.machine()) -> int:
    """Return the number of keyctl on a machine that has a filter."""
    return int(REFUSED["keyctl"][_ARCHITECTURES[machine][0]] or 0)
