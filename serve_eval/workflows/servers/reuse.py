"""Run on servers that another process holds, and say how servers were lost."""

from __future__ import annotations

import asyncio
import os
import re
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from serve_eval.errors import EndpointError, LaunchError, ServerEndedError
from serve_eval.evaluation.launch import launch
from serve_eval.evaluation.shared_server import while_kept
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.schema import Endpoint, HeldServers, Plan
from serve_eval.workflows import servers
from serve_eval.workflows.servers import Held, daemon

WATCH_S = 0.25
"""Seconds between checks of whether the servers still run."""
NOTICED_S = 1.5
"""Seconds by which a failed request may precede the news that its server has ended."""
LOG_LINES = 5
"""Lines of every log that are quoted if a holder is gone without a report. They are taken from its
last LOG_BYTES bytes."""
LOG_BYTES = 16384


@asynccontextmanager
async def attach(
    plan: Plan,
    prepared: Sequence[PreparedTask],
    folder: Path,
    *,
    reuse: bool,
    keep: bool,
    notify: Callable[[str], None],
    registry: Path | None = None,
) -> AsyncIterator[Endpoint]:
    """Yield the endpoint of held servers: the `launching` of `evaluate`, except for the keywords.

    With `reuse`, use servers that are already held, and wait if they are still starting. Otherwise
    start them: with `keep` through a holder that stays, without it only for this run. If the holder
    ends, the block ends with a LaunchError.
    """
    registry = registry or servers.registry()
    entry = None
    if plan.launcher.name not in daemon.UNHELD:
        if keep:
            entry = await daemon.start(plan, notify=notify, attach=reuse, registry=registry)
        elif (
            reuse and (other := await daemon.find_held(registry, daemon.identity(plan))) is not None
        ):
            entry = await daemon.join_daemon(registry, other, notify)
    if entry is None:
        async with launch(plan, prepared, folder, notify=notify) as endpoint:
            yield endpoint
        return
    assert entry.endpoint is not None
    if plan.limits.sample_timeout_s > entry.patience_s:
        raise LaunchError(
            f"the held servers {entry.id} allow {entry.patience_s:g} s per sample, but this run"
            f" waits for {plan.limits.sample_timeout_s:g} s",
            hint=f"End them with: serve-eval serve --stop {entry.id}",
        )
    notify(f"attached to the servers {entry.id}, held by process {entry.pid} since {entry.since}")
    keeper = asyncio.create_task(_watch(registry, entry))
    try:
        async with while_kept(keeper):
            yield entry.endpoint.with_info(
                attached=HeldServers(id=entry.id, holder=entry.pid, since=entry.since)
            )
    except (LaunchError, EndpointError) as error:
        await asyncio.wait({keeper}, timeout=NOTICED_S)
        if not keeper.done():
            raise
        raise await _last_words(registry, entry) from error
    finally:
        keeper.cancel()
        with suppress(asyncio.CancelledError, LaunchError):
            await keeper


def up(plan: Plan, registry: Path | None = None) -> Held | None:
    """Return the servers of a plan if they are held and ready."""
    found = servers.find(registry or servers.registry(), daemon.identity(plan))
    return found if found is not None and found.state == "ready" else None


async def _watch(registry: Path, entry: Held) -> None:
    """Raise LaunchError as soon as the servers are no longer ready."""
    while (found := servers.now(registry, entry)) is not None and found.state == "ready":  # noqa: ASYNC110
        await asyncio.sleep(WATCH_S)
    raise LaunchError(f"the servers {entry.id} are ending")


async def _last_words(registry: Path, entry: Held) -> LaunchError:
    """Wait for the holder to end and return its report, or else the last lines of the logs."""
    while (found := servers.now(registry, entry)) is not None and found.state != "ended":  # noqa: ASYNC110
        await asyncio.sleep(daemon.POLL_S)
    if found is not None:
        return LaunchError(found.error, hint=found.hint)
    lines = [f"the servers {entry.id} were ended: process {entry.pid}, which held them, is gone"]
    for log in sorted(Path(entry.log_dir).glob("*.log")):
        lines += [f"{log.name}: {line}" for line in _last_lines(log)]
    return LaunchError("\n  ".join(lines), hint="By serve-eval serve --stop, or by a signal.")


def _last_lines(log: Path) -> list[str]:
    """Return the last lines of a log, which may be long, or gone."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        return file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    return []


LATER_S = 10.0
"""Seconds in which a holder reports how its servers ended, once nothing listens there."""
POLL_S = 0.1
CONNECT_S = 1.0
_REASON = ". Its log is "


def explain_lost(error: EndpointError) -> EndpointError:
    """Return an error with how the kept servers that it names have ended, or the error as it is.

    Waits up to LATER_S for their holder to report. Servers that still listen are not explained.
    """
    folder = servers.find_folder()
    if _REASON in str(error) or not folder.is_dir():
        return error
    entry = next((one for one in servers.list_all(folder) if _names(error, one)), None)
    if entry is None or _listens(entry):
        return error
    deadline = time.monotonic() + LATER_S
    while (now := servers.now(folder, entry)) is not None and now.state != "ended":
        if time.monotonic() > deadline:
            return error
        time.sleep(POLL_S)
    if now is None:
        said, hint = f"process {entry.pid}, which kept its servers up, is gone", ""
    else:
        said, hint = now.error, now.hint
    first, _, rest = said.partition("\n")
    log = (
        hint if hint.startswith(_REASON.removeprefix(". ")) else f"Its logs are in {entry.log_dir}"
    )
    told = f"{str(error).partition(': every ')[0]}: {first}. {log.rstrip('.')}"
    return ServerEndedError("\n".join(filter(None, (told, rest))), hint=error.hint)


def _names(error: EndpointError, entry: Held) -> bool:
    if entry.endpoint is None:
        return False
    place = urlsplit(entry.endpoint.base_url).netloc
    return re.search(rf"(?<![\w.]){re.escape(place)}(?!\d)", str(error)) is not None


def _listens(entry: Held) -> bool:
    assert entry.endpoint is not None
    url = urlsplit(entry.endpoint.base_url)
    try:
        socket.create_connection((url.hostname or "", url.port or 80), CONNECT_S).close()
    except OSError:
        return False
    return True
