"""One core for the server, another for what is measured, and room for as many sockets as a run
needs.
"""

from __future__ import annotations

import os
import resource

CLIENT, SERVER = 0, 1
"""Places among the cores that this process may use: the measured client has the first, the server
the second."""


def pin(place: int) -> None:
    """Binds this process to one core, where the system can and there is more than one."""
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) > 1:
        os.sched_setaffinity(0, {allowed[place % len(allowed)]})


def raise_open_files() -> int:
    """Lifts the soft limit of open files to the hard one; returns it. 4096 in flight are 4096
    sockets.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted
