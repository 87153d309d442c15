"""Assign nodes of an allocation and GPUs to every server. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from serve_eval.errors import PlanError
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.servers import Part

FIRST_PORT = 8000
"""Port of the endpoint in a dry run, where a launch draws one; the servers use the next ones."""
ALL = "0.0.0.0"  # noqa: S104 - only where `bind: all` asks for it


@dataclass(frozen=True, slots=True, kw_only=True)
class Spot:
    """The nodes of a server, by position in the allocation, and its GPUs, the same on each node."""

    nodes: tuple[int, ...]
    gpus: tuple[str, ...]


def spots(parts: Sequence[Part], gpus_per_node: int) -> list[Spot]:
    """Return a spot for every part, in their order.

    A server that fits into a node gets GPUs on the first node with enough left. A wider one gets
    whole nodes, with its ranks evenly spread. The orchestrator runs on the first node. Raises
    PlanError if ranks cannot be spread evenly.
    """
    if gpus_per_node < 1:
        raise PlanError(f"launcher.gpus_per_node: is {gpus_per_node}; must be 1 or more")
    used = [0]  # GPUs in use by node
    found = []
    for part in parts:
        count = -(-part.width // gpus_per_node)
        if count > 1:
            if part.width % count:
                raise PlanError(
                    f"launcher: {part.name} has {part.width} ranks, which cannot be"
                    f" spread evenly over {count} nodes with {gpus_per_node} GPUs",
                    hint="Choose tp x pp x cp as a multiple of the number of nodes.",
                )
            nodes = _nodes(used, count, gpus_per_node, gpus_per_node)
            first, width, taken = 0, part.width // count, gpus_per_node
        else:
            nodes = _nodes(used, 1, part.width, gpus_per_node) if part.width else [0]
            first, width, taken = used[nodes[0]], part.width, used[nodes[0]] + part.width
        for node in nodes:
            used[node] = taken
        found.append(
            Spot(nodes=tuple(nodes), gpus=tuple(str(gpu) for gpu in range(first, first + width)))
        )
    return found


def _nodes(used: list[int], count: int, gpus: int, per_node: int) -> list[int]:
    """Return the first nodes with that number of GPUs left; add nodes if they are too few."""
    found = [node for node, taken in enumerate(used) if taken + gpus <= per_node][:count]
    while len(found) < count:
        found.append(len(used))
        used.append(0)
    return found


def node_count(spots: Sequence[Spot]) -> int:
    return 1 + max(node for spot in spots for node in spot.nodes)


def place_parts(
    parts: Sequence[Part],
    spots: Sequence[Spot],
    nodes: Sequence[str],
    *,
    first_port: int,
    bind: str,
) -> list[tuple[Part, Place]]:
    """Return every part with its place.

    The endpoint gets the first port and the servers the next ones, each a different one even on
    another node. Servers bind the name of their node, which they register with service discovery.

    Raises PlanError if the nodes are too few.
    """
    if (needed := node_count(spots)) > len(nodes):
        raise PlanError(
            f"launcher: {needed} nodes are needed, and there are {len(nodes)}: {','.join(nodes)}",
            hint="Use a larger allocation, fewer servers or less parallelism.",
        )
    ports = [*range(first_port + 1, first_port + len(parts)), first_port]
    return [
        (part, Place(host=ALL if bind == "all" else name, port=port, gpus=spot.gpus, address=name))
        for part, spot, port in zip(parts, spots, ports, strict=True)
        for name in [nodes[spot.nodes[0]]]
    ]


def placement(servers: Sequence[Server], spots: Sequence[Spot], nodes: Sequence[str]) -> list[str]:
    """Return a line per node: the servers on it, with their GPUs and ports."""
    lines = []
    for number, node in enumerate(nodes[: node_count(spots)]):
        here = []
        for server, spot in zip(servers, spots, strict=True):
            if number in spot.nodes:
                gpus = f" GPU {','.join(spot.gpus)}" if spot.gpus else ""
                port = (
                    f" port {server.place.port}" if number == spot.nodes[0] else " (further ranks)"
                )
                here.append(f"{server.name}{gpus}{port}")
        lines.append(f"{node}: {'; '.join(here)}")
    return lines


def node_names(nodes: int) -> list[str]:
    """Return placeholder names for nodes if no allocation is known."""
    return [f"node{number}" for number in range(1, nodes + 1)]
