"""Wait until the pods behind a Service answer, watch them during a run, and follow their logs.

The pods are listed every second. A list shows the number of restarts and the uid of each pod, so
nothing is missed while the API server is away, and there is no connection that could break.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import httpx

from serve_eval.errors import LaunchError
from serve_eval.launchers._fleet import loading
from serve_eval.launchers._fleet.loading import BoundedReply
from serve_eval.launchers._kubernetes.cluster import (
    NOT_FOUND,
    Cluster,
    RefusedError,
    UnreachableError,
    as_launch_error,
)
from serve_eval.launchers._kubernetes.services import ContainerState, PodState, find_end, list_pods
from serve_eval.launchers._logs.causes import SAME, Refusals
from serve_eval.launchers._logs.last_error import cause
from serve_eval.launchers._process.server_process import LOG_LINES

EARLIER_LINES = 1000
"""Lines of a log from before the run that are kept."""
MOST_BYTES = 256 * 1024 * 1024
"""Size at which a log is no longer followed."""
TOO_LARGE = b"(serve-eval: the log is too large to follow it any further)\n"
AGAIN_S = 1.0
"""Seconds until a log that broke off is followed again."""
SETTLE_S = 1.0
"""Seconds for the last lines of a container that ended."""


def log_path(folder: Path, pod: str, container: str, suffix: str = "") -> Path:
    """Return the file for the log of a container."""
    return folder / f"{pod}-{container}{suffix}.log"


class FollowedLog:
    """The log of a container, with times of the cluster, in a file that only its user can read."""

    def __init__(self, cluster: Cluster, pod: str, container: str, folder: Path) -> None:
        self._cluster, self._pod, self._container = cluster, pod, container
        self.path = log_path(folder, pod, container)
        self._last, self._written, self._rest = b"", 0, b""

    async def follow(self, notify: Callable[[str], None]) -> None:
        """Run until cancelled, until the pod is gone, or until the file is too large."""
        told = False
        with _open_private(self.path) as descriptor:
            params = self._first_lines(os.fstat(descriptor).st_size)
            while True:
                try:
                    await self._read(descriptor, params)
                except RefusedError as error:
                    if error.status == NOT_FOUND:
                        return
                    if not told:
                        notify(f"warning: the log of {self._pod} cannot be read: {error}")
                        told = True
                except UnreachableError:
                    pass
                if self._written >= MOST_BYTES:
                    os.write(descriptor, TOO_LARGE)
                    return
                if self._last:
                    params = {"sinceTime": self._last.decode("ascii", "replace")}
                await asyncio.sleep(AGAIN_S)

    def _first_lines(self, size: int) -> dict[str, str]:
        """Return what to ask first: lines from before, unless the file has some already."""
        if size:
            return {"sinceTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
        return {"tailLines": str(EARLIER_LINES)}

    async def _read(self, descriptor: int, params: dict[str, str]) -> None:
        asked = {"container": self._container, "follow": "true", "timestamps": "true", **params}
        self._rest = b""
        async with self._cluster.stream(f"pods/{self._pod}/log", **asked) as pieces:
            async for piece in pieces:
                *lines, self._rest = (self._rest + piece).split(b"\n")
                self._write(descriptor, lines)
                if self._written >= MOST_BYTES:
                    return
        self._write(descriptor, [self._rest] if self._rest else [])

    def _write(self, descriptor: int, lines: Iterable[bytes]) -> None:
        """Write lines that are newer than the last one.

        A log that is followed again begins with the second of its last line.
        """
        for line in lines:
            at = line.partition(b" ")[0]
            if len(at) == len(self._last) and at <= self._last:
                continue
            self._last = at if at[:1].isdigit() else self._last
            self._written += os.write(descriptor, line + b"\n")


@contextmanager
def _open_private(path: Path) -> Iterator[int]:
    """Open a file to append to, which only its user can read. Follow no link."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
    descriptor = os.open(path, flags, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@asynccontextmanager
async def follow_logs(
    cluster: Cluster, pods: Iterable[PodState], folder: Path, notify: Callable[[str], None]
) -> AsyncIterator[None]:
    """Follow the logs of all containers of the pods for the length of a block."""
    logs = [
        FollowedLog(cluster, pod.name, one.name, folder) for pod in pods for one in pod.containers
    ]
    tasks = [asyncio.create_task(log.follow(notify)) for log in logs]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, OSError):
                notify(f"warning: a log could not be written: {result}")


async def read_last_lines(
    cluster: Cluster, pod: str, container: str, *, previous: bool
) -> list[str]:
    """Return the last lines of a container, or of the one before it; empty if there are none."""
    before = {"previous": "true"} if previous else {}
    with suppress(RefusedError, UnreachableError):
        text = await cluster.text(
            f"pods/{pod}/log", container=container, tailLines=str(LOG_LINES), **before
        )
        return text.splitlines()[-LOG_LINES:]
    return []


async def save_previous(cluster: Cluster, pod: str, container: str, folder: Path) -> Path | None:
    """Write the log of the container before the present one, and return its file.

    Returns None if the cluster has kept none.
    """
    path = log_path(folder, pod, container, ".previous")
    try:
        text = await cluster.text(
            f"pods/{pod}/log",
            container=container,
            previous="true",
            timestamps="true",
            limitBytes=str(MOST_BYTES),
        )
        path.unlink(missing_ok=True)
        with _open_private(path) as descriptor:
            os.write(descriptor, text.encode())
    except (RefusedError, UnreachableError, OSError):
        return None
    return path


POLL_S = 1.0
"""Seconds between two looks at the pods."""
TELL_S = 10.0
"""Seconds between two messages about what the launch waits for."""
ASK_AGAIN_S = 0.5
NEEDS_KEY = (401, 403)


async def wait_until_ready(
    cluster: Cluster,
    selectors: Sequence[str],
    *,
    timeout_s: float,
    notify: Callable[[str], None],
) -> list[list[PodState]]:
    """Return the pods of each label selector once all of them are Ready.

    Pods that ended or are being deleted do not count. Raises LaunchError after `timeout_s`
    seconds, and immediately if a container does not start without help.
    """
    began = said = time.monotonic()
    first = True
    while True:
        try:
            found = [await list_pods(cluster, one) for one in selectors]
        except (RefusedError, UnreachableError) as error:
            if first or isinstance(error, RefusedError):
                doing = f"list the pods of namespace {cluster.namespace}"
                raise as_launch_error(error, doing, cluster) from error
            waiting = [f"the API server does not answer: {error}"]
        else:
            found = [[one for one in pods if not one.leaving and not one.ended] for pods in found]
            everyone = [one for pods in found for one in pods]
            await _check_start(cluster, everyone)
            waiting = [one.describe() for one in everyone if not one.ready]
            waiting += [
                f"no pod has the labels {selector}"
                for selector, pods in zip(selectors, found, strict=True)
                if not pods
            ]
            if not waiting:
                return found
        now, told = time.monotonic(), "; ".join(waiting)
        if now - began >= timeout_s:
            raise LaunchError(
                f"not ready after {timeout_s:g} s: {told}",
                hint="kubectl describe pod shows why; launcher.ready_timeout_s is the limit.",
            )
        if first or now - said >= TELL_S:
            said = now
            notify(f"waiting for pods: {told}")
        first = False
        await asyncio.sleep(min(POLL_S, timeout_s))


async def _check_start(cluster: Cluster, pods: Sequence[PodState]) -> None:
    for pod in pods:
        if (stuck := pod.find_stuck()) is None:
            continue
        crashed = stuck.restarts > 0
        lines = await read_last_lines(cluster, pod.name, stuck.name, previous=crashed)
        how = f"; its last process ended with {stuck.ended}" if stuck.ended else ""
        told = f"pod {pod.name}: container {stuck.name}: {stuck.waiting}{how}"
        if stuck.message:
            told += f": {stuck.message}"
        known = cause("\n".join(lines))
        hint = f"{known[1]} " if known else ""
        raise LaunchError(
            "\n  ".join([f"{told}: {known[0]}" if known else told, *lines]),
            hint=f"{hint}kubectl describe pod {pod.name} -n {cluster.namespace} shows more.",
        )


async def wait_for_completion(
    base_url: str,
    model: str,
    *,
    name: str,
    timeout_s: float,
    notify: Callable[[str], None],
    trouble: Callable[[], str] = lambda: "",
) -> None:
    """Return once the servers at an address have answered one completion.

    An answer that asks for an API key is enough: the run has the key. `trouble` returns what the
    way to the address is known to suffer from, and may raise. Raises LaunchError.
    """
    began, last, refusals = time.monotonic(), "no answer", Refusals()
    async with httpx.AsyncClient(trust_env=False, base_url=base_url) as client:
        while (left := timeout_s - (time.monotonic() - began)) > 0:
            try:
                reply = await _ask(client, model, left)
            except httpx.HTTPError as error:
                last = trouble() or f"{type(error).__name__} {error}".strip()
            else:
                if reply.status_code in NEEDS_KEY:
                    notify(f"{name}: it answers, and asks for an API key")
                    return
                if reply.status_code == 200 and _has_choices(reply):
                    notify(f"{name}: the first completion took {time.monotonic() - began:.1f} s")
                    return
                last = (
                    "it reports that it is starting"
                    if loading.says_so(reply)
                    else f"HTTP {reply.status_code} {reply.text[:500]}"
                )
                if refusals.permanent(reply.status_code, reply.text):
                    last = f"refused {SAME} times in the same way: {last}"
                    break
            await asyncio.sleep(ASK_AGAIN_S)
    raise LaunchError(
        f"{name} is Ready but returns no completion within {timeout_s:g} s: {last}"
        if not last.startswith("refused")
        else f"{name} is Ready but returns no completion: {last}"
    )


async def _ask(client: httpx.AsyncClient, model: str, timeout_s: float) -> BoundedReply:
    body = {"model": model, "max_tokens": 4, "temperature": 0.0}
    reply = await loading.request(
        client, "POST", "/completions", body={**body, "prompt": "Hello"}, timeout_s=timeout_s
    )
    if reply.status_code not in (404, 405):
        return reply
    chat = {**body, "messages": [{"role": "user", "content": "Hello"}]}
    other = await loading.request(
        client, "POST", "/chat/completions", body=chat, timeout_s=timeout_s
    )
    return other if other.status_code not in (404, 405) else reply


def _has_choices(reply: BoundedReply) -> bool:
    try:
        return bool(reply.json().get("choices"))
    except (ValueError, AttributeError):
        return False


AWAY_S = 30.0
"""Seconds without an answer of the API server until a line says so."""


class PodWatch:
    """The pods of a run: those of the Service, and further `others` that work for them.

    `end` is the error for the first pod that ended, restarted or was replaced. With `joins`, a
    further pod of the Service that becomes Ready is such an end too, as it gets requests.
    """

    def __init__(
        self,
        cluster: Cluster,
        selectors: Sequence[str],
        pods: Sequence[PodState],
        *,
        joins: bool,
        log_dir: Path,
        notify: Callable[[str], None],
    ) -> None:
        self._cluster, self._selectors, self._joins = cluster, selectors, joins
        self._log_dir, self._notify = log_dir, notify
        self._before = {one.name: one for one in pods}
        self.usable = frozenset(one.name for one in pods if one.usable)
        self.end: LaunchError | None = None
        self._answered_at, self._told_away = time.monotonic(), False
        self._seen: set[str] = set()

    async def run(self) -> None:
        """Look until a pod ends, and set `end`. Run until cancelled if none does."""
        while self.end is None:
            await asyncio.sleep(POLL_S)
            await self.look()

    async def look(self) -> None:
        """List the pods once, and set `end` if one ended."""
        try:
            found = [pod for one in self._selectors for pod in await list_pods(self._cluster, one)]
        except (RefusedError, UnreachableError) as error:
            self._tell_away(error)
            return
        self._answered_at, self._told_away = time.monotonic(), False
        self.end = await self._compare({one.name: one for one in found})

    def _tell_away(self, error: Exception) -> None:
        """Say once that the pods are not watched. An API server that is away ends no run."""
        silent_s = time.monotonic() - self._answered_at
        if silent_s > AWAY_S and not self._told_away:
            self._told_away = True
            self._notify(f"warning: the pods were not watched for {silent_s:.0f} s: {error}")

    async def _compare(self, now: dict[str, PodState]) -> LaunchError | None:
        for name, before in self._before.items():
            if (ended := find_end(before, now.get(name))) is not None:
                return await self._describe(name, *ended)
        self._tell_readiness(now)
        for name in now.keys() - self._before.keys() - self._seen:
            pod = now[name]
            if pod.usable and self._joins:
                return LaunchError(
                    f"pod {name} joined the service during the run, and gets requests",
                    hint=(
                        "Resume the run once the deployment no longer changes: the report then"
                        " records all pods."
                    ),
                )
            if pod.usable:
                self._seen.add(name)
                self._notify(f"pod {name} joined the service; this run sends it no requests")
        return None

    def _tell_readiness(self, now: dict[str, PodState]) -> None:
        usable = frozenset(name for name in self._before if now[name].usable)
        for name in sorted(self.usable - usable):
            self._notify(f"warning: pod {name} is no longer Ready")
        for name in sorted(usable - self.usable):
            self._notify(f"pod {name} is Ready again")
        self.usable = usable

    async def _describe(
        self, pod: str, message: str, container: ContainerState | None
    ) -> LaunchError:
        """Return the error for the end of a pod, with what its logs show."""
        hint, lines = "", []
        if container is not None:
            previous = await save_previous(self._cluster, pod, container.name, self._log_dir)
            lines = await read_last_lines(
                self._cluster, pod, container.name, previous=previous is not None
            )
            path = log_path(self._log_dir, pod, container.name)
            hint = f"Its log is {path}."
            if previous is not None:
                hint = f"{hint} The log from before the restart is {previous}."
        else:
            names = [one.name for one in self._before[pod].containers]
            paths = [str(log_path(self._log_dir, pod, one)) for one in names]
            hint = f"Its log is {', '.join(paths)}."
        if known := cause("\n".join(lines)):
            message, hint = f"{message}: {known[0]}", f"{known[1]} {hint}"
        return LaunchError("\n  ".join([message, *lines]), hint=hint)

    def end_if_it_failed(self, done: asyncio.Task[None]) -> None:
        """End the run if the watch itself fails, so that no restart goes unnoticed."""
        if not done.cancelled() and (error := done.exception()) is not None:
            self.end = LaunchError(f"the pods cannot be watched: {type(error).__name__} {error}")


@asynccontextmanager
async def watch_pods(watch: PodWatch) -> AsyncIterator[None]:
    """Run a watch for the length of a block, and look once more at its end.

    Raises LaunchError if a pod ended since the last look.
    """
    task = asyncio.create_task(watch.run())
    task.add_done_callback(watch.end_if_it_failed)
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if watch.end is None:
        await watch.look()
        if watch.end is not None:
            raise watch.end
