"""Reach each of the pods that a label selector chooses, on its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from serve_eval.errors import LaunchError
from serve_eval.launchers._kubernetes.cluster import (
    Cluster,
    RefusedError,
    UnreachableError,
    as_launch_error,
    connect,
)
from serve_eval.launchers._kubernetes.pods import PodState
from serve_eval.launchers._kubernetes.services import list_pods
from serve_eval.launchers._kubernetes.tunnels import PodPort, Tunnels
from serve_eval.schema.base_url import authority

PORT_NAMES = ("http", "serve")
"""Names of the port that is chosen if a pod has several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPods:
    """The pods to reach: through `tunnels`, or at their own addresses in the cluster.

    `namespace` None: that of the context. `port` None: the one that each pod declares.
    """

    selector: str
    namespace: str | None
    port: int | None
    tunnels: bool


@asynccontextmanager
async def reach_pods(
    chosen: ChosenPods, notify: Callable[[str], None]
) -> AsyncIterator[dict[str, str]]:
    """Yield the base URL of each Ready pod, by the name of the pod.

    Raises LaunchError if the cluster does not answer or refuses, if no pod is Ready, and if a pod
    declares no port, or several.
    """
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(connect(None, None, chosen.namespace))
        pods = await _find_ready(cluster, chosen.selector, notify)
        ports = {one.name: chosen.port or choose_port(one) for one in pods}
        if not chosen.tunnels:
            yield {one.name: _address(one, ports[one.name]) for one in pods}
            return
        tunnels = Tunnels(cluster, notify, lambda: frozenset(ports))
        stack.push_async_callback(tunnels.close)
        found = {}
        for name, port in ports.items():
            local = await stack.enter_async_context(tunnels.listen([PodPort(name, port)]))
            found[name] = f"http://127.0.0.1:{local}/v1"
        yield found


async def _find_ready(
    cluster: Cluster, selector: str, notify: Callable[[str], None]
) -> Sequence[PodState]:
    try:
        pods = await list_pods(cluster, selector)
    except (RefusedError, UnreachableError) as error:
        doing = f"list the pods {selector} of namespace {cluster.namespace}"
        raise as_launch_error(error, doing, cluster) from error
    where = f"with the labels {selector} in namespace {cluster.namespace}"
    if not pods:
        raise LaunchError(
            f"there is no pod {where}",
            hint=f"Look with: kubectl get pods -n {cluster.namespace} --show-labels",
        )
    ready = [one for one in pods if one.usable]
    away = "; ".join(one.describe() for one in pods if not one.usable)
    if not ready:
        raise LaunchError(f"no pod {where} is Ready: {away}", hint="kubectl describe shows why.")
    if away:
        notify(f"warning: left out: {away}")
    return ready


def choose_port(pod: PodState) -> int:
    """Return the port of a pod: the one that is named http or serve, or the only one.

    Raises LaunchError with the ports that there are. Pure.
    """
    ports = [
        port
        for container in (pod.raw.get("spec") or {}).get("containers") or ()
        for port in container.get("ports") or ()
        if port.get("protocol", "TCP") == "TCP"
    ]
    named = [one for one in ports if one.get("name") in PORT_NAMES]
    found = named if len(ports) > 1 else ports
    if len(found) == 1:
        return int(found[0]["containerPort"])
    listed = ", ".join(
        f"{one['containerPort']} ({one['name']})" if one.get("name") else str(one["containerPort"])
        for one in ports
    )
    told = f"has the ports {listed}" if ports else "declares no port"
    raise LaunchError(
        f"pod {pod.name} {told}",
        hint="Choose the port of the servers with --set verify.port=N.",
    )


def _address(pod: PodState, port: int) -> str:
    ip = str((pod.raw.get("status") or {}).get("podIP") or "")
    if not ip:
        raise LaunchError(f"pod {pod.name} is Ready and has no address")
    return f"http://{authority(ip, port)}/v1"
