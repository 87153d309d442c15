"""Find a Service, its port, its address and the pods behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from serve_eval.errors import LaunchError
from serve_eval.launchers._kubernetes.cluster import (
    NOT_FOUND,
    Cluster,
    RefusedError,
    UnreachableError,
    as_launch_error,
)
from serve_eval.launchers._kubernetes.pods import PodState, read_pod


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundService:
    """A Service with one chosen port.

    `selector` is the label selector of its pods. `target` is the port of a pod, by number or name.
    """

    name: str
    namespace: str
    selector: str
    port: int
    target: int | str
    headless: bool = False

    def target_port(self, pod: PodState) -> int:
        """Return the number of the pod's port. Raise LaunchError for a name that it lacks."""
        if isinstance(self.target, int):
            return self.target
        for container in (pod.raw.get("spec") or {}).get("containers") or ():
            for port in container.get("ports") or ():
                if port.get("name") == self.target:
                    return int(port["containerPort"])
        raise LaunchError(
            f"pod {pod.name} has no port named {self.target}, which service {self.name} sends to"
        )

    def address(self) -> str:
        """Return the base URL of the Service inside the cluster."""
        return f"http://{self.name}.{self.namespace}.svc:{self.port}/v1"


async def find_service(cluster: Cluster, name: str, port: int | str | None) -> FoundService:
    """Return the Service of that name. Raise LaunchError with what exists instead."""
    try:
        raw = await cluster.get(f"services/{name}")
    except RefusedError as error:
        if error.status == NOT_FOUND:
            raise await _explain_missing(cluster, name) from error
        raise as_launch_error(error, f"read service {name}", cluster) from error
    except UnreachableError as error:
        raise as_launch_error(error, f"read service {name}", cluster) from error
    return read_service(raw, port, cluster.namespace)


def read_service(raw: Mapping[str, Any], port: int | str | None, namespace: str) -> FoundService:
    """Return a Service of the API with the chosen port. Raise LaunchError without pods or port."""
    name, spec = str(raw["metadata"]["name"]), raw.get("spec") or {}
    if not spec.get("selector"):
        kind = spec.get("type", "ClusterIP")
        raise LaunchError(
            f"launcher.service: {name} selects no pods itself (type {kind}), so they cannot be"
            " watched",
            hint=(
                "Name the Service that selects the pods of the servers, or use the launcher"
                " external with its address."
            ),
        )
    chosen = _choose_port(name, spec.get("ports") or (), port)
    number, headless = int(chosen["port"]), spec.get("clusterIP") == "None"
    target = chosen.get("targetPort") or number
    if headless and isinstance(target, int):
        number = target  # its name resolves to the pods themselves
    return FoundService(
        name=name,
        namespace=namespace,
        selector=",".join(f"{key}={value}" for key, value in spec["selector"].items()),
        port=number,
        target=target,
        headless=headless,
    )


def _choose_port(
    service: str, ports: Sequence[Mapping[str, Any]], port: int | str | None
) -> Mapping[str, Any]:
    listed = ", ".join(
        f"{one['port']} ({one['name']})" if one.get("name") else str(one["port"]) for one in ports
    )
    if port is None:
        if len(ports) == 1:
            return ports[0]
        raise LaunchError(
            f"launcher.port: service {service} has {len(ports)} ports; choose one of {listed}"
        )
    for one in ports:
        if str(port) in (str(one["port"]), one.get("name")):
            return one
    raise LaunchError(f"launcher.port: service {service} has no port {port!r}; it has {listed}")


async def _explain_missing(cluster: Cluster, name: str) -> LaunchError:
    where = f"namespace {cluster.namespace}"
    try:
        names = _names(await cluster.get("services"))
    except (RefusedError, UnreachableError):
        names = []
    if names:
        return LaunchError(
            f"launcher.service: there is no service {name!r} in {where}; it has {', '.join(names)}"
        )
    told = f"launcher.service: there is no service {name!r} in {where}, and no other either"
    try:
        known = _names(await cluster.list_namespaces())
    except (RefusedError, UnreachableError):
        known = []
    if known and cluster.namespace not in known:
        told = f"launcher.namespace: there is no {where}; the cluster has {', '.join(known)}"
    return LaunchError(told, hint="Set launcher.namespace and launcher.context.")


def _names(listed: Mapping[str, Any]) -> list[str]:
    return sorted(str(one["metadata"]["name"]) for one in listed.get("items") or ())


async def list_pods(cluster: Cluster, selector: str) -> list[PodState]:
    """Return the pods of a label selector, by name. Raise RefusedError and UnreachableError."""
    found = await cluster.get("pods", labelSelector=selector)
    pods = [read_pod(one) for one in found.get("items") or ()]
    return sorted(pods, key=lambda pod: pod.name)
