"""Watch the pods behind a Service during a run, and describe how one of them ended.

The pods are listed every second. A list shows the number of restarts and the uid of each pod, so
nothing is missed while the API server is away, and there is no connection that could break.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from serve_eval.errors import LaunchError
from serve_eval.launchers._kubernetes import logs
from serve_eval.launchers._kubernetes.cluster import Cluster, RefusedError, UnreachableError
from serve_eval.launchers._kubernetes.pods import ContainerState, PodState, find_end
from serve_eval.launchers._kubernetes.services import list_pods
from serve_eval.launchers._logs.last_error import cause

POLL_S = 1.0
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
            previous = await logs.save_previous(self._cluster, pod, container.name, self._log_dir)
            lines = await logs.read_last_lines(
                self._cluster, pod, container.name, previous=previous is not None
            )
            path = logs.log_path(self._log_dir, pod, container.name)
            hint = f"Its log is {path}."
            if previous is not None:
                hint = f"{hint} The log from before the restart is {previous}."
        else:
            names = [one.name for one in self._before[pod].containers]
            paths = [str(logs.log_path(self._log_dir, pod, one)) for one in names]
            hint = f"Its log is {', '.join(paths)}."
        if known := cause("\n".join(lines)):
            message, hint = f"{message}: {known[0]}", f"{known[1]} {hint}"
        return LaunchError("\n  ".join([message, *lines]), hint=hint)


@asynccontextmanager
async def watch_pods(watch: PodWatch) -> AsyncIterator[None]:
    """Run a watch for the length of a block, and look once more at its end.

    Raises LaunchError if a pod ended since the last look.
    """
    task = asyncio.create_task(watch.run())
    task.add_done_callback(lambda done: _set_end(watch, done))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    if watch.end is None:
        await watch.look()
        if watch.end is not None:
            raise watch.end


def _set_end(watch: PodWatch, done: asyncio.Task[None]) -> None:
    """End the run if the watch itself fails, so that no restart goes unnoticed."""
    if not done.cancelled() and (error := done.exception()) is not None:
        watch.end = LaunchError(f"the pods cannot be watched: {type(error).__name__} {error}")
