"""Run servers for the length of a block, adapted to their version, ready and watched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager

from serve_eval.errors import LaunchError
from serve_eval.launchers._fleet.fatal_watch import FatalWatch
from serve_eval.launchers._fleet.fleet import fleet
from serve_eval.launchers._fleet.log_watch import Watching
from serve_eval.launchers._fleet.readiness import ready
from serve_eval.launchers._logs.causes import UNKNOWN_OPTION
from serve_eval.launchers._options import TimeLimits
from serve_eval.launchers._process.server_process import while_alive
from serve_eval.launchers._trtllm import kv_transfer, mpi, shared_key
from serve_eval.launchers._trtllm.command_line import Server
from serve_eval.launchers._trtllm.flavour import adapt_to_machine, forget
from serve_eval.schema import Endpoint, KvTransfer, LaunchContext, ServerInfo


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
    for line in mpi.describe_ranks(servers):
        context.notify(line)
    key = shared_key.draw_key()
    adapted = await adapt_to_machine(servers, key)
    if transfer is not None:
        context.notify(kv_transfer.describe_transfer(transfer))
    try:
        with shared_key.secret(adapted, context, key) as (context, started):
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
    held: Mapping[str, int] | None = None,
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
