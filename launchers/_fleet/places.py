"""Place servers on this machine: disjoint blocks of GPUs, and a port for every server."""

from __future__ import annotations

import os
from collections.abc import Sequence

from serve_eval.errors import PlanError
from serve_eval.launchers._machine import hosts, local_gpus
from serve_eval.launchers._options import LOOPBACK
from serve_eval.launchers._trtllm.command_line import Place
from serve_eval.launchers._trtllm.parts import Part

FIRST_PORT = 8000
"""First port that a dry run shows where a launch takes free ports: the orchestrator's; its servers
use the next ones."""


def place_parts(
    parts: Sequence[Part],
    *,
    gpus: local_gpus.Named,
    host: str,
    port: int | None,
    ports: Sequence[int] | None = None,
) -> list[tuple[Part, Place]]:
    """Return every part with its place; `host` and `port` are for the last part.

    The other parts bind loopback. `ports` are that of the last part, then those of the others
    (None: those that a dry run shows). Raises PlanError if the GPUs are too few or a port is out of
    range.
    """
    first = check_shown_port(port)
    hosts.check(host)
    front, *others = ports or range(first, first + len(parts))
    blocks = local_gpus.blocks([(part.name, part.width) for part in parts], gpus, os.environ)
    places = [
        Place(host=LOOPBACK, port=number, gpus=block)
        for number, block in zip(others, blocks[:-1], strict=True)
    ]
    return list(zip(parts, [*places, Place(host=host, port=front, gpus=blocks[-1])], strict=True))


def check_shown_port(port: int | None) -> int:
    """Return the endpoint's port in a dry run. Raise PlanError if it is out of range."""
    if port is not None and not 0 < port < 65536:
        raise PlanError(
            f"launcher.port: {port} is out of range; give one from 1 to 65535, or leave"
            " it out for a free one"
        )
    return FIRST_PORT if port is None else port
