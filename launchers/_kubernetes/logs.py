"""Follow the logs of containers into files of the run folder."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from serve_eval.launchers._kubernetes.cluster import (
    NOT_FOUND,
    Cluster,
    RefusedError,
    UnreachableError,
)
from serve_eval.launchers._kubernetes.services import PodState
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
    """The log of one container of a pod, appended to a file that only its user can read.

    Each line begins with its time, which the cluster reports.
    """

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
    cluster: Cluster, pod: str, container: str, *, previous: bool = False
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
