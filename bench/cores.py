"""Separate cores for the server and the measured client, and enough sockets for a run."""

from __future__ import annotations

import os
import resource

CLIENT, SERVER = 0, 1
"""Indices into the cores that this process may use, for the measured client and the server."""


def pin(place: int) -> None:
    """Bind this process to one core if the system supports it and has more than one."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) > 1:
        os.sched_setaffinity(0, {allowed[place % len(allowed)]})


def raise_open_files() -> int:
    """Raise the soft limit of open files to the hard one, and return it.

    4096 requests in flight need 4096 sockets.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
