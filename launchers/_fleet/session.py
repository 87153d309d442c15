"""Place the servers of any engine, and run them for the length of a block, watched."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from serve_eval.errors import LaunchError, NoRoomError, PlanError
from serve_eval.launchers._fleet.fleet import fleet, free_ports
from serve_eval.launchers._fleet.readiness import ready
from serve_eval.launchers._fleet.running import FatalWatch, Watching
from serve_eval.launchers._logs.causes import UNKNOWN_OPTION
from serve_eval.launchers._machine import hosts, local_gpus, lock_files
from serve_eval.launchers._machine.local_gpus import AUTO, Gpu, Named
from serve_eval.launchers._options import LOOPBACK, EngineOptions, TimeLimits
from serve_eval.launchers._process import environment
from serve_eval.launchers._process.server_process import while_alive
from serve_eval.launchers._trtllm import kv_transfer
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.servers import Part
from serve_eval.launchers._trtllm.version import adapt_to_machine, forget
from serve_eval.schema import Endpoint, JobSize, KvTransfer, LaunchContext, ServerInfo


@asynccontextmanager
async def session(
    servers: Sequence[Server],
    context: LaunchContext,
    *,
    launcher: str,
    model: str,
    limits: TimeLimits,
    cluster: bool = False,
    transfer: KvTransfer | None = None,
    held: Mapping[str, int] | None = None,
) -> AsyncIterator[Endpoint]:
    """Start the servers, wait for a completion from the last one, and yield its endpoint.

    `model` is the name in requests. `cluster` means that the other servers register with the last
    one. `held` are locks that the caller already has. `transfer` describes the transport of the KV
    cache. Some versions share a key between servers; no message contains it. Raises PlanError for
    an option that this version does not know, LaunchError if a server does not start or ends.
    """
    for line in kv_transfer.describe_ranks(servers):
        context.notify(line)
    key = kv_transfer.draw_key()
    adapted = await adapt_to_machine(servers, key)
    if transfer is not None:
        context.notify(kv_transfer.describe_transfer(transfer))
    try:
        with kv_transfer.secret(adapted, context, key) as (context, started):
            async with serve_commands(
                adapted,
                context,
                launcher=launcher,
                model=model,
                limits=limits,
                cluster=cluster,
                held=held,
            ) as endpoint:
                started()
                yield endpoint if transfer is None else endpoint.with_info(kv_transfer=transfer)
    except LaunchError as error:
        if UNKNOWN_OPTION in str(error):
            forget(servers)
        raise


@asynccontextmanager
async def serve_commands(
    servers: Sequence[Server],
    context: LaunchContext,
    *,
    launcher: str,
    model: str,
    limits: TimeLimits,
    cluster: bool = False,
    held: Mapping[str, int] | None,
) -> AsyncIterator[Endpoint]:
    """Run the command lines of any servers, unchanged, as `session` does. Raise LaunchError."""
    front = servers[-1]
    async with fleet(
        servers,
        log_dir=context.log_dir,
        notify=context.notify,
        stop_timeout_s=limits.stop_timeout_s,
        held=held,
    ) as running:
        watching = Watching(running)
        async with while_alive(watching.look):
            await ready(
                running,
                watching=watching,
                front=front,
                model=model,
                timeout_s=limits.ready_timeout_s,
                answer_timeout_s=limits.answer_timeout_s,
                notify=context.notify,
                cluster=cluster,
            )
        info = ServerInfo(
            launcher=launcher,
            commands=tuple(tuple(server.line()) for server in servers),
            servers={server.name: server.url for server in servers},
            log_dir=str(context.log_dir),
            logs={one.server.name: str(one.process.log_file) for one in running},
            perf_metrics=front.perf_metrics,
            front_ends={
                server.name: count for server in servers if (count := server.front_ends or 1) > 1
            }
            or None,
        )
        async with while_alive(FatalWatch(running).look):
            yield Endpoint(base_url=f"{front.url}/v1", model=model, info=info)


Options = TypeVar("Options", bound=EngineOptions)
MODEL_HINT = "Set launcher.model, or name the model with --model."


@asynccontextmanager
async def launch_engine(
    build: Callable[[Options, Sequence[int] | None], Server],
    context: LaunchContext,
    options: Options,
    *,
    launcher: str,
    model: str,
) -> AsyncIterator[Endpoint]:
    """Run the server that `build` makes from options and ports, for the length of the block.

    `options` are those of the launcher; `model` is the name in requests. Raises LaunchError, and
    PlanError before looking for GPUs.
    """
    shown = build(options, None)
    async with (
        reserve(options.gpus, [shown], context.notify) as reserved,
        serve_commands(
            [build(replace(options, gpus=reserved.gpus), free_ports(options.host, options.port))],
            context,
            launcher=launcher,
            model=model,
            limits=options,
            held=reserved.locks,
        ) as endpoint,
    ):
        yield endpoint


def gpus_of_a_job(options: EngineOptions, width: int = 1) -> local_gpus.Named:
    """Return the GPUs that the server has in a job to come, whatever this machine shows.

    `width` is the number of GPUs that auto means.
    """
    return list(range(width)) if options.gpus == local_gpus.AUTO else options.gpus


def job_size(options: EngineOptions, width: int = 1) -> JobSize:
    """Return the size of a job of one node for the server: with the GPUs that the options name."""
    if options.gpus is None:
        return JobSize(notes=("The plan names no GPUs (launcher.gpus), so the job has none.",))
    count = width if options.gpus == local_gpus.AUTO else len(options.gpus)
    return JobSize(gpus_per_node=count, whole_nodes=True)


def choose_model(context: LaunchContext, model: str | None, what: str) -> str:
    """Return the model to load: `model`, else that of the plan. Raise PlanError without one."""
    if (found := model or context.model) is None:
        raise PlanError(f"launcher.model: name {what}", hint=MODEL_HINT)
    return found


def find_model(context: LaunchContext, model: str | None) -> str:
    """Return a folder as an absolute path, any other name unchanged. Raise PlanError without one.

    Servers that hand a KV cache over must be given the same name.
    """
    found = choose_model(context, model, "a folder, or a model of the hub")
    folder = Path(found).expanduser()
    return str(folder.absolute()) if folder.is_dir() else found


def place(options: EngineOptions, ports: Sequence[int] | None = None, *, width: int = 1) -> Place:
    """Return the address and the GPUs of the server.

    It has no GPUs of its own if none are named, and `width` for auto. `ports` are those that a
    launch takes (None: those that a dry run shows). Raises PlanError, also for fewer than `width`.
    """
    port = check_shown_port(options.port)
    named = options.gpus or []
    auto = named == local_gpus.AUTO
    count, environ = (width, os.environ) if auto else (max(width, len(named)) if named else 0, {})
    [gpus] = local_gpus.blocks([("the server", count)], named, environ)
    return Place(host=hosts.check(options.host), port=ports[0] if ports else port, gpus=gpus)


def list_words(flags: Mapping[str, object]) -> Iterator[str]:
    """Yield the words of flags: those that are None or False have none, True has no value."""
    for flag, value in flags.items():
        if value is None or value is False:
            continue
        yield flag
        if value is not True:
            yield str(value)


def server(
    name: str,
    command: Sequence[str],
    flags: Mapping[str, object],
    options: EngineOptions,
    where: Place,
    *,
    env: Mapping[str, str] | None = None,
    health: str = "/health",
) -> Server:
    """Return the server with its command line.

    The command line is `command`, then the flags that are not None, then `extra_args`. Variables of
    the options override `env`. Raises PlanError for a secret, and for an extra argument that is a
    flag of the launcher.
    """
    extra = options.extra_args
    environment.check(options.env, "launcher.env")
    environment.check_names(options.pass_env, "launcher.pass_env")
    environment.check_words([*command, *extra], "launcher.command or launcher.extra_args")
    for word in extra:
        if (flag := word.partition("=")[0]) in flags:
            raise PlanError(
                f"launcher.extra_args: {flag} is set by the launcher: use the"
                " launcher's option for it"
            )
    visible = {"CUDA_VISIBLE_DEVICES": ",".join(where.gpus)} if where.gpus else {}
    return Server(
        name=name,
        argv=(*command, *list_words(flags), *extra),
        probe=(),
        place=where,
        env={**visible, **(env or {}), **options.env},
        pass_env=tuple(options.pass_env),
        health=health,
        engine=name,
    )


FIRST_PORT = 8000
"""First port that a dry run shows where a launch takes free ports: the orchestrator's; its servers
use the next ones."""


def place_parts(
    parts: Sequence[Part],
    *,
    gpus: local_gpus.Named,
    host: str,
    port: int | None,
    ports: Sequence[int] | None = None,
) -> list[tuple[Part, Place]]:
    """Return every part with its place; `host` and `port` are for the last part.

    The other parts bind loopback. `ports` are that of the last part, then those of the others
    (None: those that a dry run shows). Raises PlanError if the GPUs are too few or a port is out of
    range.
    """
    first = check_shown_port(port)
    hosts.check(host)
    front, *others = ports or range(first, first + len(parts))
    blocks = local_gpus.blocks([(part.name, part.width) for part in parts], gpus, os.environ)
    places = [
        Place(host=LOOPBACK, port=number, gpus=block)
        for number, block in zip(others, blocks[:-1], strict=True)
    ]
    return list(zip(parts, [*places, Place(host=host, port=front, gpus=blocks[-1])], strict=True))


def check_shown_port(port: int | None) -> int:
    """Return the endpoint's port in a dry run. Raise PlanError if it is out of range."""
    if port is not None and not 0 < port < 65536:
        raise PlanError(
            f"launcher.port: {port} is out of range; give one from 1 to 65535, or leave"
            " it out for a free one"
        )
    return FIRST_PORT if port is None else port


@dataclass(frozen=True, slots=True)
class Reserved:
    """The GPUs of a launch, and the locks that it already holds."""

    gpus: Named
    locks: Mapping[str, int] = field(default_factory=dict)


@asynccontextmanager
async def reserve(
    gpus: Named, servers: Sequence[Server], notify: Callable[[str], None]
) -> AsyncIterator[Reserved]:
    """Take as many free GPUs as the servers need if `gpus` is auto; else keep `gpus`.

    A GPU is free if at most FREE_MIB are in use and no other launch holds it. The choice is among
    those of CUDA_VISIBLE_DEVICES, else all. Waits only for memory that is `late`. Raises
    NoRoomError, with the reasons, if too few are free.
    """
    if gpus != AUTO:
        yield Reserved(gpus)
        return
    needed = sum(len(server.place.gpus) for server in servers)
    deadline = None
    with ExitStack() as stack:
        while True:
            used = await asyncio.to_thread(local_gpus.memory_used)
            offered = _list_offered(used)
            busy = await asyncio.to_thread(local_gpus.in_use, offered.values(), used)
            free, locks, unheld, why = _take(offered, busy, needed, stack)
            if len(free) == needed:
                break
            stack.close()
            late = await asyncio.to_thread(local_gpus.late, unheld, used)
            if len(free) + len(late) < needed or (
                deadline is not None and time.monotonic() > deadline
            ):
                count = f"{needed} GPU{'s are' if needed > 1 else ' is'} needed"
                raise NoRoomError(
                    "\n".join(
                        [
                            f"launcher.gpus: auto: {count}, and {len(free)} of {len(offered)} free",
                            *why,
                        ]
                    ),
                    hint="Try again when more are free, or use fewer servers or less parallelism.",
                )
            if deadline is None:
                deadline = time.monotonic() + local_gpus.BACK_S
                notify(local_gpus.waits(late))
            await asyncio.sleep(local_gpus.PAUSE_S)
        yield Reserved(free, locks)


def _list_offered(used: Mapping[Gpu, int | None] | None) -> dict[str, Gpu]:
    """Return the GPUs to choose from, by name. Raise NoRoomError if none is known."""
    if used is None:
        raise NoRoomError(
            "launcher.gpus: auto: nvidia-smi reports no GPU on this machine",
            hint="Name the GPUs, as in launcher.gpus: [0].",
        )
    names = local_gpus.visible(os.environ) or [gpu.number for gpu in used]
    return dict(zip(names, local_gpus.check_there(names, used), strict=True))


def _take(
    offered: Mapping[str, Gpu], busy: Mapping[Gpu, str], needed: int, stack: ExitStack
) -> tuple[list[int | str], dict[str, int], list[Gpu], list[str]]:
    """Return the first free GPUs, their locks, busy GPUs that no launch holds, and reasons.

    There is one reason for each GPU that was not taken.
    """
    free: list[int | str] = []
    unheld: list[Gpu] = []
    locks: dict[str, int] = {}
    why: list[str] = []
    for name, gpu in offered.items():
        if len(free) == needed:
            break
        lock = lock_files.lock_names([gpu.lock], held=locks, shown={gpu.lock: f"GPU {gpu.number}"})
        try:
            if gpu in busy:
                with lock:
                    unheld.append(gpu)
                why.append(busy[gpu])
            else:
                locks |= stack.enter_context(lock)
                free.append(name)
        except NoRoomError as error:
            why.append(str(error))
    return free, locks, unheld, why
