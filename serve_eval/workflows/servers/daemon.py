"""Keep servers beyond a run: a separate process holds them, and runs find them by their id.

The holder adds them to the registry (`__init__.py`), waits, and ends them. A process that uses
them watches that entry.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TextIO

import msgspec

from serve_eval.errors import LaunchError, PlanError
from serve_eval.evaluation.launch import launch
from serve_eval.plan.plan_file import to_file
from serve_eval.processes.child_process import build_command, build_environment
from serve_eval.schema import Limits, Plan
from serve_eval.storage.file_names import LOGS
from serve_eval.storage.json_files import write_private
from serve_eval.workflows import servers
from serve_eval.workflows.servers import UNHELD as UNHELD
from serve_eval.workflows.servers import Held
from serve_eval.workflows.servers import check as check
from serve_eval.workflows.servers import identity as identity

Notify = Callable[[str], None]

PASSED = ("SERVE_EVAL_TRACEBACK", "SERVE_EVAL_PASS_ENV", "SERVE_EVAL_LOCK_DIR")
"""Variables of serve-eval that a holder receives; all others are options of another command."""
POLL_S = 0.1
TELL_S = 10.0


async def hold(
    plan: Plan,
    *,
    folder: Path | None = None,
    notify: Notify,
    ready: Callable[[Held], None],
    registry: Path | None = None,
) -> None:
    """Start the servers of a plan's launcher and hold them until cancelled.

    Logs go to `folder`/logs (None: a folder in the registry). `ready` is called once they answer.
    Raises LaunchError if another process holds the same servers, and as soon as one of them ends.
    """
    check(plan)
    registry, id_ = registry or servers.registry(), identity(plan)
    folder = (folder or _new_folder(registry, id_)).absolute()
    began = servers.began(os.getpid())
    if began is None:
        raise LaunchError(
            "servers are held on Linux only", hint="Start them elsewhere and give --base-url."
        )
    entry = Held(
        id=id_,
        state="starting",
        launcher=plan.launcher.name,
        model=plan.model or str(plan.launcher.options.get("model", "")),
        pid=os.getpid(),
        began=began,
        since=datetime.now(UTC).isoformat(timespec="seconds"),
        log_dir=str(folder / LOGS),
        patience_s=plan.limits.sample_timeout_s,
        started_in=str(Path.cwd()),  # That of the user: a detached holder inherits it.
    )
    if (other := servers.claim(registry, entry)) is not None:
        raise _refuse_taken(other)
    try:
        _clean_up(registry, id_, folder)
        async with launch(plan, (), folder, notify=notify) as endpoint:
            entry = replace(
                entry, state="ready", endpoint=endpoint, model=endpoint.model or entry.model
            )
            servers.update(registry, entry)
            ready(entry)
            try:
                await asyncio.Event().wait()
            finally:
                servers.update(registry, replace(entry, state="ending"))
    except asyncio.CancelledError:
        servers.remove(registry, entry)
        raise
    except Exception as error:
        ended = replace(
            entry,
            state="ended",
            error=str(error),
            hint=getattr(error, "hint", ""),
            exit_code=getattr(error, "exit_code", LaunchError.exit_code),
        )
        servers.update(registry, ended)
        raise


async def start(
    plan: Plan,
    *,
    folder: Path | None = None,
    notify: Notify,
    attach: bool,
    registry: Path | None = None,
) -> Held:
    """Start the servers through a holder process in a new session, and return when they are ready.

    If another holder has them, they are returned too, or with `attach` false refused with a
    LaunchError. Cancellation during the start ends them. Raises LaunchError with the output of the
    holder if they do not start.
    """
    check(plan)
    registry, id_ = registry or servers.registry(), identity(plan)
    if (other := await find_held(registry, id_)) is not None:
        if not attach:
            raise _refuse_taken(other)
        notify(
            f"nothing was started: the servers of this plan are up already, since {other.since}"
            f" (logs: {other.log_dir})"
        )
        return await join_daemon(registry, other, notify)
    folder = (folder or _new_folder(registry, id_)).absolute()
    holder, log = _holder(plan, folder)
    try:
        with log.open(encoding="utf-8", errors="replace") as said:
            entry = await _until_ready(registry, id_, notify, holder, said, attach=attach)
    except BaseException as error:
        if not isinstance(error, LaunchError):
            holder.terminate()
        while holder.poll() is None:  # noqa: ASYNC110 - nothing reports its end
            await asyncio.sleep(POLL_S)
        raise
    if holder.poll() is None:
        holder.returncode = 0  # It outlives this process, so nothing must wait for it.
    return entry


def _holder(plan: Plan, folder: Path) -> tuple[subprocess.Popen[bytes], Path]:
    """Start `serve-eval serve` as a separate process that inherits only the environment.

    Returns the process and its log. The servers receive what they need of the environment.
    """
    from serve_eval import yaml_source

    (folder / LOGS).mkdir(mode=0o700, parents=True, exist_ok=True)
    bare = Plan(
        model=plan.model,
        launcher=plan.launcher,
        tasks=(),
        include_path=plan.include_path,
        connection=plan.connection,  # The holder masks this key in the logs of its servers.
        limits=Limits(sample_timeout_s=plan.limits.sample_timeout_s),
    )
    file, log_file = folder / "plan.yaml", folder / LOGS / "holder.log"
    write_private(file, yaml_source.dump(msgspec.to_builtins(to_file(bare))).encode())
    env = {k: v for k, v in os.environ.items() if not k.startswith("SERVE_EVAL_") or k in PASSED}
    with os.fdopen(os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as log:
        holder = subprocess.Popen(  # noqa: S603 - ourselves
            build_command("serve_eval", "serve", str(file), "--output-dir", str(folder)),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            env=build_environment(env),
            start_new_session=True,
        )
    return holder, log_file


async def _until_ready(
    registry: Path,
    id_: str,
    notify: Notify,
    holder: subprocess.Popen[bytes] | None = None,
    said: TextIO | None = None,
    *,
    attach: bool = True,
) -> Held:
    """Wait for servers that `holder` or another process starts.

    The output `said` of our own holder is passed to `notify`, line by line.
    """
    rest, last = "", ""
    while True:
        # In this order: an error that ends the holder is in the registry before it is in the log.
        rest += "" if said is None else said.read()
        running = holder is not None and holder.poll() is None
        entry = servers.find(registry, id_)
        if entry is not None and entry.state == "ended":
            mistake = entry.exit_code == PlanError.exit_code
            raise (PlanError if mistake else LaunchError)(entry.error, hint=entry.hint)
        if entry is not None and entry.state != "ending":
            if holder is not None and entry.pid != holder.pid:  # Another holder was first.
                if not attach:
                    raise _refuse_taken(entry)
                return await join_daemon(registry, entry, notify)
            if entry.state == "ready":
                for line in (rest + ("" if said is None else said.read())).splitlines():
                    notify(line)
                return entry
        elif not running:
            raise LaunchError(
                f"the process that starts the servers has ended\n  {last}{rest}".strip()
            )
        *lines, rest = rest.split("\n")
        for last in lines:
            notify(last)
        await asyncio.sleep(POLL_S)


async def find_held(registry: Path, id_: str) -> Held | None:
    """Return the held servers, once those that are ending have ended.

    The entry of a failed holder is removed.
    """
    while (entry := servers.find(registry, id_)) is not None and entry.state == "ending":  # noqa: ASYNC110
        await asyncio.sleep(POLL_S)
    if entry is None or entry.state != "ended":
        return entry
    servers.remove(registry, entry)
    return None


async def join_daemon(registry: Path, entry: Held, notify: Notify) -> Held:
    """Return the same servers once they are ready."""
    if entry.state == "starting":
        notify(
            f"waiting for the servers {entry.id}, started by process {entry.pid}; logs in"
            f" {entry.log_dir}"
        )
        return await _until_ready(registry, entry.id, notify)
    return entry


async def stop(entry: Held, *, notify: Notify, registry: Path | None = None) -> None:
    """End the held servers and wait until they are gone, with a message every ten seconds."""
    registry = registry or servers.registry()
    if entry.state != "ending":  # A holder that is asked twice leaves immediately.
        servers.ask_to_end(entry)
    began = said = time.monotonic()
    while entry.alive:
        await asyncio.sleep(POLL_S)
        if (clock := time.monotonic()) - said > TELL_S:
            said = clock
            notify(
                f"{entry.id}: still running after {clock - began:.0f} s; its logs are in"
                f" {entry.log_dir}"
            )
    servers.remove(registry, entry)


def _refuse_taken(other: Held) -> LaunchError:
    if other.state == "ending":
        return LaunchError(
            f"process {other.pid} is ending the same servers: {other.id}",
            hint="Try again later.",
        )
    return LaunchError(
        f"process {other.pid} already {'holds' if other.state == 'ready' else 'starts'} the same"
        f" servers: {other.id}",
        hint=(
            "Use them with serve-eval run --reuse, or stop them with: serve-eval serve --stop"
            f" {other.id}"
        ),
    )


def _new_folder(registry: Path, id_: str) -> Path:
    """Return a folder that is named after this process.

    Folders of processes that are gone are removed at the next start of the same servers.
    """
    return registry / f"{id_}-{os.getpid()}"


def _clean_up(registry: Path, id_: str, own: Path) -> None:
    for earlier in registry.glob(f"{id_}-*"):
        maker = earlier.name.rpartition("-")[2]
        if earlier != own and maker.isdecimal() and servers.began(int(maker)) is None:
            shutil.rmtree(earlier, ignore_errors=True)
