"""Find a Service and the pods behind it, and describe these for the report."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from serve_eval.errors import LaunchError
from serve_eval.frozen import freeze
from serve_eval.launchers._kubernetes.cluster import (
    NOT_FOUND,
    Cluster,
    RefusedError,
    UnreachableError,
    as_launch_error,
)
from serve_eval.masking import HIDDEN
from serve_eval.processes.child_process import secret
from serve_eval.schema import PodContainer, ServedPod
from serve_eval.secret_signs import holds_secret


@freeze
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


GIVEN_UP = frozenset(
    (
        "CrashLoopBackOff",
        "CreateContainerConfigError",
        "CreateContainerError",
        "ErrImageNeverPull",
        "ImagePullBackOff",
        "InvalidImageName",
        "RunContainerError",
    )
)
"""Reasons of waiting that do not pass without help."""
KILLED = 137
"""Exit code of a container that received SIGKILL."""


@freeze
class ContainerState:
    """The state of a container of a pod. Texts and the exit code are of what it reports now.

    `ended` is how its last process ended, if one has ended; `stopped` is True while none runs
    again.
    """

    name: str
    ready: bool = False
    restarts: int = 0
    waiting: str = ""
    message: str = ""
    ended: str = ""
    stopped: bool = False


@freeze
class PodState:
    """The state of a pod. `leaving`: it is being deleted. `ended`: it will not run again."""

    name: str
    uid: str
    phase: str
    ready: bool
    leaving: bool
    containers: tuple[ContainerState, ...]
    unscheduled: str = ""
    reason: str = ""
    raw: Mapping[str, Any]

    @property
    def ended(self) -> bool:
        """True if its containers ended for good."""
        return self.phase in ("Succeeded", "Failed")

    @property
    def usable(self) -> bool:
        """True if a Service sends requests to it."""
        return self.ready and not self.leaving and not self.ended

    def find_stuck(self) -> ContainerState | None:
        """Return a container that does not start without help."""
        return next((one for one in self.containers if one.waiting in GIVEN_UP), None)

    def describe(self) -> str:
        """Return the reason why it is not ready, in a few words."""
        if self.leaving:
            return f"{self.name} is being deleted"
        if self.unscheduled:
            return f"{self.name} is not scheduled: {self.unscheduled}"
        told = [_describe(one) for one in self.containers if not one.ready]
        return f"{self.name} is {self.phase}" + (f" ({'; '.join(told)})" if told else "")


def _describe(one: ContainerState) -> str:
    if one.waiting:
        return f"{one.name}: {one.waiting}" + (f", {one.message}" if one.message else "")
    return f"{one.name}: {one.ended if one.stopped else 'not ready'}"


def read_pod(raw: Mapping[str, Any]) -> PodState:
    """Return the state of a pod of the API."""
    meta, status = raw.get("metadata") or {}, raw.get("status") or {}
    conditions = {one.get("type"): one for one in status.get("conditions") or ()}
    scheduled = conditions.get("PodScheduled") or {}
    return PodState(
        name=str(meta.get("name", "")),
        uid=str(meta.get("uid", "")),
        phase=str(status.get("phase", "Unknown")),
        ready=(conditions.get("Ready") or {}).get("status") == "True",
        leaving="deletionTimestamp" in meta,
        containers=tuple(_read_container(one) for one in _statuses(raw)),
        unscheduled=(
            str(scheduled.get("message") or scheduled.get("reason") or "")
            if scheduled.get("status") == "False"
            else ""
        ),
        reason=str(status.get("reason") or ""),
        raw=raw,
    )


def _statuses(raw: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the statuses of containers and of sidecars.

    Init containers that ended are left out: they are no servers.
    """
    status, spec = raw.get("status") or {}, raw.get("spec") or {}
    sidecars = {
        one.get("name")
        for one in spec.get("initContainers") or ()
        if one.get("restartPolicy") == "Always"
    }
    for one in status.get("initContainerStatuses") or ():
        if one.get("name") in sidecars or "waiting" in (one.get("state") or {}):
            yield one
    yield from status.get("containerStatuses") or ()


def _read_container(status: Mapping[str, Any]) -> ContainerState:
    state, last = status.get("state") or {}, status.get("lastState") or {}
    waiting, now = state.get("waiting") or {}, state.get("terminated") or {}
    ended = now or last.get("terminated") or {}
    return ContainerState(
        name=str(status.get("name", "")),
        ready=bool(status.get("ready")),
        restarts=int(status.get("restartCount") or 0),
        waiting=str(waiting.get("reason") or ""),
        message=" ".join(str(waiting.get("message") or "").split())[:200],
        ended=_describe_end(ended) if ended else "",
        stopped=bool(now),
    )


def _describe_end(ended: Mapping[str, Any]) -> str:
    code = ended.get("exitCode")
    told = [str(ended["reason"])] if ended.get("reason") else []
    told += [] if code is None else [f"exit code {code}"]
    if code == KILLED and ended.get("reason") != "OOMKilled":
        told.append("SIGKILL")
    return ", ".join(told)


def find_end(before: PodState, now: PodState | None) -> tuple[str, ContainerState | None] | None:
    """Return how a pod ended or restarted since `before`, and its container; None if it did not.

    `now` is the pod of that name, or None if there is none.
    """
    if now is None:
        return f"pod {before.name} is gone", None
    if now.uid != before.uid:
        return f"pod {before.name} was replaced by another of the same name", None
    restarts = {one.name: one for one in before.containers}
    for one in now.containers:
        known = restarts.get(one.name)
        times = one.restarts - (known.restarts if known else 0)
        if times > 0:
            how = one.ended or "its cause is not reported"
            return f"pod {now.name}: container {one.name} restarted: {how}", one
        if one.stopped and known is not None and not known.stopped:
            return f"pod {now.name}: container {one.name} ended: {one.ended}", one
    if now.leaving:
        return f"pod {now.name} is being deleted", None
    if now.ended:
        return f"pod {now.name} ended: {now.reason or now.phase}", None
    return None


_BLANKS = re.compile(r"(\s+)")
_PAIR = re.compile(r"""(["']([\w-]+)["']\s*:\s*(["']))[^"']*(["'])""")
"""A key and its text, as JSON and YAML write them."""


def record_pods(pods: Iterable[PodState], namespace: str) -> tuple[ServedPod, ...]:
    """Return what the report keeps of pods. Variables are left out, as they may be secrets."""
    return tuple(
        ServedPod(
            name=pod.name,
            namespace=namespace,
            uid=pod.uid,
            node=(pod.raw.get("spec") or {}).get("nodeName"),
            containers=tuple(_record_containers(pod)),
        )
        for pod in pods
    )


def _record_containers(pod: PodState) -> list[PodContainer]:
    spec, status = pod.raw.get("spec") or {}, pod.raw.get("status") or {}
    digests = {
        one.get("name"): one.get("imageID")
        for kind in ("initContainerStatuses", "containerStatuses")
        for one in status.get(kind) or ()
    }
    restarts = {one.name: one.restarts for one in pod.containers}
    sidecars = [one for one in spec.get("initContainers") or () if one.get("name") in restarts]
    return [
        PodContainer(
            name=str(one.get("name", "")),
            image=str(one.get("image", "")),
            digest=digests.get(one.get("name")) or None,
            command=_words(one, "command"),
            args=_words(one, "args"),
            restarts=restarts.get(str(one.get("name")), 0),
        )
        for one in (*(spec.get("containers") or ()), *sidecars)
    ]


def _words(container: Mapping[str, Any], key: str) -> tuple[str, ...] | None:
    words = container.get(key)
    return None if words is None else tuple(mask_words([str(word) for word in words]))


def mask_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command line with stars for what looks like a secret.

    Such are a token or key by its form, a password in an address, the word after a flag with the
    name of a secret, and the value of such a flag, variable or JSON key. The words of a script,
    which is one word itself, are masked in the same way.
    """
    masked: list[str] = []
    follows = False
    for word in words:
        if follows and not word.startswith("-"):
            masked.append(HIDDEN)
            follows = False
            continue
        shown = _PAIR.sub(_mask_pair, word)
        pieces = _BLANKS.split(shown)
        if len(pieces) > 1:
            pieces[::2] = mask_words(pieces[::2])
            shown = "".join(pieces)
        else:
            shown = _mask_word(shown)
        follows = len(pieces) == 1 and _is_flag(word)
        masked.append(shown)
    return masked


def _is_flag(word: str) -> bool:
    return word.startswith("-") and "=" not in word and secret(word.lstrip("-"))


def _mask_word(word: str) -> str:
    name, equals, value = word.partition("=")
    if equals and value and secret(name.lstrip("-")):
        return f"{name}={HIDDEN}"
    if holds_secret(word):
        return f"{name}={HIDDEN}" if equals else HIDDEN
    return word


def _mask_pair(found: re.Match[str]) -> str:
    return f"{found[1]}{HIDDEN}{found[4]}" if secret(found[2]) else found[0]
