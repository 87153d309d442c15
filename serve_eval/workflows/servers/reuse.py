"""How a run uses servers that a process of their own holds, and ends as soon as they do."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from serve_eval.errors import EndpointError, LaunchError
from serve_eval.evaluation.endpoint.keeper import while_kept
from serve_eval.evaluation.endpoint.launch import launch
from serve_eval.evaluation.plan.prepared_task import PreparedTask
from serve_eval.schema import Endpoint, HeldServers, Plan
from serve_eval.workflows.servers import daemon, held_servers
from serve_eval.workflows.servers.held_servers import Held

WATCH_S = 0.25
"""How late a run notices the end of servers that it uses."""
NOTICED_S = 1.5
"""Seconds by which a failed request may come before the end of its server is known."""
LOG_LINES = 5
"""Lines of every log that are quoted when a holder is gone without a word, found in its last
LOG_BYTES."""
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
    """The endpoint of held servers for a run: what `evaluate` takes as its `launching`, but for the
    keywords.

    With `reuse`, that of servers which are held already, and for which is waited when they are
    starting. Else they are started: with `keep` through a holder that stays, without for this run
    alone. When the holder of the servers ends, the block ends with a LaunchError.
    """
    registry = registry or held_servers.registry()
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
            f"the held servers {entry.id} were started for samples of at most {entry.patience_s:g}"
            f" s, and this run waits for {plan.limits.sample_timeout_s:g} s",
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
    """The servers of a plan that are held and ready."""
    found = held_servers.find(registry or held_servers.registry(), daemon.identity(plan))
    return found if found is not None and found.state == "ready" else None


async def _watch(registry: Path, entry: Held) -> None:
    """Raises LaunchError as soon as the servers are no longer ready."""
    while (found := held_servers.now(registry, entry)) is not None and found.state == "ready":  # noqa: ASYNC110
        await asyncio.sleep(WATCH_S)
    raise LaunchError(f"the servers {entry.id} end")


async def _last_words(registry: Path, entry: Held) -> LaunchError:
    """What the holder says of its end, for which is waited; else what the logs say."""
    while (found := held_servers.now(registry, entry)) is not None and found.state != "ended":  # noqa: ASYNC110
        await asyncio.sleep(daemon.POLL_S)
    if found is not None:
        return LaunchError(found.error, hint=found.hint)
    lines = [f"the servers {entry.id} were ended: process {entry.pid}, which held them, is gone"]
    for log in sorted(Path(entry.log_dir).glob("*.log")):
        lines += [f"{log.name}: {line}" for line in _last_lines(log)]
    return LaunchError("\n  ".join(lines), hint="By serve-eval serve --stop, or by a signal.")


def _last_lines(log: Path) -> list[str]:
    """Of a log that may be long, or gone."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LOG_BYTES))
        return file.read().decode(errors="replace").splitlines()[-LOG_LINES:]
    return []
