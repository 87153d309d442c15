"""Attach to the servers behind a Service, or to each of the pods that a selector chooses."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import field
from functools import partial

from serve_eval.errors import LaunchError
from serve_eval.frozen import freeze
from serve_eval.launchers._kubernetes.cluster import (
    NEEDED,
    Cluster,
    RefusedError,
    UnreachableError,
    as_launch_error,
    connect,
)
from serve_eval.launchers._kubernetes.services import (
    FoundService,
    PodState,
    find_service,
    list_pods,
    record_pods,
)
from serve_eval.launchers._kubernetes.tunnels import PodPort, Tunnels, open_tunnels
from serve_eval.launchers._kubernetes.watch import (
    PodWatch,
    follow_logs,
    log_path,
    wait_for_completion,
    wait_until_ready,
    watch_pods,
)
from serve_eval.launchers._process.server_process import while_alive
from serve_eval.schema import Endpoint, LaunchContext, ServerInfo
from serve_eval.schema.base_url import authority


@freeze
class ChosenService:
    """The servers to attach to, and the way to reach them: through `tunnels`, or in the cluster.

    `also_watch` is a label selector of further pods, which work for those of the Service.
    """

    kubeconfig: str | None
    context: str | None
    namespace: str | None
    service: str
    port: int | str | None
    also_watch: str | None
    tunnels: bool
    ready_timeout_s: float
    answer_timeout_s: float


@freeze
class _Addresses:
    """Base URLs of the whole Service and of each pod, and the tunnels of the latter."""

    front: str
    pods: Mapping[str, str]
    tunnels: Mapping[str, PodPort] = field(default_factory=dict)

    def check_tunnel(self, pod: str) -> str:
        """Return why the last tunnel to a pod broke. Raise LaunchError if none is allowed."""
        tunnel = self.tunnels[pod]
        if tunnel.refused:
            raise LaunchError(f"pod {pod}: {tunnel.trouble}", hint=NEEDED)
        return tunnel.trouble


@asynccontextmanager
async def attach(context: LaunchContext, wanted: ChosenService) -> AsyncIterator[Endpoint]:
    """Wait for the servers, watch them, follow their logs, and yield their endpoint.

    Raises LaunchError, also during the block if a pod ends, restarts or is replaced.
    """
    if context.model is None:
        raise LaunchError(
            "the launcher kubernetes needs the name of the model", hint="Set --model."
        )
    notify, log_dir = context.notify, context.log_dir
    async with AsyncExitStack() as stack:
        cluster = await stack.enter_async_context(
            connect(wanted.kubeconfig, wanted.context, wanted.namespace)
        )
        service = await find_service(cluster, wanted.service, wanted.port)
        selectors = [service.selector, *([wanted.also_watch] if wanted.also_watch else [])]
        behind, *others = await wait_until_ready(
            cluster, selectors, timeout_s=wanted.ready_timeout_s, notify=notify
        )
        everyone = list({one.name: one for pods in (behind, *others) for one in pods}.values())
        watch = PodWatch(
            cluster, selectors, everyone, joins=not wanted.tunnels, log_dir=log_dir, notify=notify
        )
        await stack.enter_async_context(follow_logs(cluster, everyone, log_dir, notify))
        await stack.enter_async_context(watch_pods(watch))
        await stack.enter_async_context(while_alive(lambda: watch.end))
        notify(_describe(service, behind, len(everyone) - len(behind), wanted.tunnels))
        reached = await stack.enter_async_context(
            _reach(cluster, service, behind, watch, context, tunnels=wanted.tunnels)
        )
        await _ask_first(reached, service, context.model, wanted, context)
        info = ServerInfo(
            launcher="kubernetes",
            service=f"{service.namespace}/{service.name}:{service.port}",
            pods=record_pods(everyone, service.namespace),
            servers=reached.pods,
            log_dir=str(log_dir),
            logs={
                one.name: str(log_path(log_dir, one.name, _serving(one, service)))
                for one in everyone
            },
        )
        yield Endpoint(base_url=reached.front, model=context.model, info=info)


@asynccontextmanager
async def _reach(
    cluster: Cluster,
    service: FoundService,
    pods: Sequence[PodState],
    watch: PodWatch,
    context: LaunchContext,
    *,
    tunnels: bool,
) -> AsyncIterator[_Addresses]:
    ports = {one.name: service.target_port(one) for one in pods}
    if tunnels:
        async with open_tunnels(cluster, ports, lambda: watch.usable, context.notify) as (
            front,
            own,
        ):
            yield _Addresses(
                front=f"http://127.0.0.1:{front}/v1",
                pods={one.pod: f"http://127.0.0.1:{port}/v1" for port, one in own.items()},
                tunnels={one.pod: one for one in own.values()},
            )
        return
    own_ips = {one.name: (one.raw.get("status") or {}).get("podIP") for one in pods}
    yield _Addresses(
        front=service.address(),
        pods={
            name: f"http://{f'[{ip}]' if ':' in ip else ip}:{ports[name]}/v1"
            for name, ip in own_ips.items()
            if ip
        },
    )


async def _ask_first(
    reached: _Addresses,
    service: FoundService,
    model: str,
    wanted: ChosenService,
    context: LaunchContext,
) -> None:
    """Ask for one completion: of each pod through its tunnel, or of the Service in the cluster."""
    limit_s, notify = wanted.answer_timeout_s, context.notify
    if not wanted.tunnels:
        name = f"service {service.name}"
        await wait_for_completion(reached.front, model, name=name, timeout_s=limit_s, notify=notify)
        return
    for pod, url in reached.pods.items():
        await wait_for_completion(
            url,
            model,
            name=f"pod {pod}",
            timeout_s=limit_s,
            notify=notify,
            trouble=partial(reached.check_tunnel, pod),
        )


def _describe(service: FoundService, pods: Sequence[PodState], others: int, tunnels: bool) -> str:
    how = "through the API server" if tunnels else f"at {service.address()}"
    more = f", and {others} watched" if others else ""
    names = ", ".join(one.name for one in pods)
    return f"service {service.namespace}/{service.name}: Ready: {names}{more}; asked {how}"


def _serving(pod: PodState, service: FoundService) -> str:
    """Return the name of the container with the port of the Service, else of the first one."""
    containers = (pod.raw.get("spec") or {}).get("containers") or ()
    for container in containers:
        for port in container.get("ports") or ():
            if service.target in (port.get("containerPort"), port.get("name")):
                return str(container["name"])
    return str(containers[0]["name"]) if containers else pod.containers[0].name


PORT_NAMES = ("http", "serve")
"""Names of the port that is chosen if a pod has several."""


@freeze
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
