"""Read what the API server reports about a pod. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

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


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
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
