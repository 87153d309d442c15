"""Build the servers of a deployment from its parts, once these have a place.

Pure, except for config files that a plan names.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze
from serve_eval.launchers._machine.local_gpus import AUTO, Named
from serve_eval.launchers._process import environment
from serve_eval.launchers._trtllm import command_line, disaggregated, kv_transfer
from serve_eval.launchers._trtllm.command_line import Place, Server
from serve_eval.launchers._trtllm.deployments import (
    Aggregated,
    Deployment,
    Disaggregated,
    ServerSide,
    name_model,
    role,
)
from serve_eval.launchers._trtllm.kv_transfer import Ways
from serve_eval.schema import JobSize, KvTransfer, LaunchContext

ORCHESTRATOR = "orchestrator"


@freeze
class Part:
    """A server to be placed on `width` GPUs (an orchestrator: none) for tp * pp * cp ranks.

    `given` are the options for its command line, `content` is that of its config file.
    """

    name: str
    kind: str
    width: int
    given: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)

    @property
    def transfer_backend(self) -> str:
        """The library that moves the KV cache to or from this server."""
        return str(self.content[disaggregated.TRANSCEIVER]["backend"])


def list_parts(deployment: Deployment, context: LaunchContext) -> list[Part]:
    """Return one server; or context servers, generation servers and the orchestrator, in order.

    Raises PlanError if options contradict each other.
    """
    name_model(deployment, context)
    environment.check(deployment.env, "launcher.env")
    environment.check_names(deployment.pass_env, "launcher.pass_env")
    environment.check_words(command_line.words(deployment.command), "launcher.command")
    if isinstance(deployment, Aggregated):
        environment.check_words(deployment.extra_args, "launcher.extra_args")
        content = command_line.read_config(deployment.config, "launcher.config")
        return [_part("trtllm", "trtllm", deployment, deployment.backend, content, "launcher")]
    sides = deployment.sides
    disaggregated.etcd(deployment.discovery)
    for kind, side in sides.items():
        environment.check(side.env, f"launcher.{kind}.env")
        environment.check_words(side.extra_args, f"launcher.{kind}.extra_args")
        if side.num_instances < 1:
            raise PlanError(f"launcher.{kind}.num_instances: must be 1 or more")
    read = [
        command_line.read_config(side.config, f"launcher.{kind}.config")
        for kind, side in sides.items()
    ]
    types = [command_line.value_of("--kv_cache_dtype", side.extra_args) for side in sides.values()]
    if deployment.perf_metrics:
        read = [{**disaggregated.WORKER, **content} for content in read]
    contents = disaggregated.agree_configs(read[0], read[1], deployment.cache_transceiver, types)
    found = [
        _part(f"{role(kind)}_{i}", kind, side, deployment.backend, content, f"launcher.{kind}")
        for (kind, side), content in zip(sides.items(), contents, strict=True)
        for i in range(side.num_instances)
    ]
    return [*found, Part(name=ORCHESTRATOR, kind=ORCHESTRATOR, width=0)]


def summarise_transfer(
    deployment: Deployment, context: LaunchContext, ways: Ways | None
) -> KvTransfer | None:
    """Return a summary of the KV transfer by the context servers' settings; None for one server.

    `ways` None: the servers are on several machines, and nothing is set.
    """
    if isinstance(deployment, Aggregated):
        return None
    backend = list_parts(deployment, context)[0].transfer_backend
    env: Mapping[str, str | None] = {**deployment.env, **deployment.context_servers.env}
    return kv_transfer.summary(backend, ways, env)


def _part(
    name: str,
    kind: str,
    options: Aggregated | ServerSide,
    backend: str | None,
    content: Mapping[str, Any],
    where: str,
) -> Part:
    given = {
        "tp": options.tp,
        "pp": options.pp,
        "cp": options.cp,
        "ep": options.ep,
        "backend": backend,
    }
    width = command_line.width(command_line.once(given, content, where), where)
    return Part(name=name, kind=kind, width=width, given=given, content=content)


def gpus_of_a_job(parts: Sequence[Part], gpus: Named) -> Named:
    """Return the GPUs that servers have in a job to come: those named, else counted from 0.

    The GPUs that this machine or the job around us shows are not those of that job.
    """
    if gpus is None or gpus == AUTO:
        return list(range(sum(part.width for part in parts)))
    return gpus


def size_on_one_node(parts: Sequence[Part]) -> JobSize:
    """Return the size of a job that runs these servers on one node, which it has for itself."""
    return JobSize(gpus_per_node=sum(part.width for part in parts), whole_nodes=True)


REQUEST_S = 7200
"""Minimum seconds that the orchestrator gives a request; its own default of 180 s cuts long
answers."""
START_MARGIN_S = 60
"""Seconds by which the orchestrator waits longer for its servers than we do, so that we report
which one is late."""


def build_servers(
    deployment: Deployment,
    context: LaunchContext,
    placed: Sequence[tuple[Part, Place]],
    *,
    ready_timeout_s: float,
    ways: Ways | None = Ways(),  # noqa: B008 - frozen
    tag: str | None = None,
) -> list[Server]:
    """Build the servers to start, in the order of the parts.

    `ways` are facts about the one machine that all parts share, from which settings of UCX follow
    (None: they are on several machines). `tag` is the launch's own name.

    Raises PlanError for extra arguments that the launcher sets and for time limits that contradict
    each other.
    """
    words = command_line.words(deployment.command)
    model = name_model(deployment, context)
    if isinstance(deployment, Aggregated):
        [(part, place)] = placed
        return [_aggregate(deployment, context, part, place, words, model)]
    front, section = placed[-1][1], None
    if deployment.discovery:
        counts = [side.num_instances for side in deployment.sides.values()]
        etcd = disaggregated.etcd(deployment.discovery)
        section = disaggregated.cluster(front.reached_at, front.port, *counts, etcd=etcd, tag=tag)
    workers = [
        _worker(deployment, context, part, place, words, model, section, ways)
        for part, place in placed[:-1]
    ]
    return [*workers, _orchestrator(deployment, context, placed, words, section, ready_timeout_s)]


def _aggregate(
    deployment: Aggregated,
    context: LaunchContext,
    part: Part,
    place: Place,
    words: Sequence[str],
    model: str,
) -> Server:
    files, config_file = {}, None
    if isinstance(deployment.config, str):
        config_file = Path(deployment.config).expanduser().absolute()
    elif part.content:
        config_file = context.log_dir / f"{part.name}.yaml"
        files[config_file] = command_line.to_yaml(part.content)
    argv = command_line.serve(
        words,
        model,
        host=place.host,
        port=place.port,
        options=part.given,
        config=part.content,
        config_file=config_file,
        extra_args=deployment.extra_args,
    )
    env = {
        "CUDA_VISIBLE_DEVICES": ",".join(place.gpus),
        **kv_transfer.for_ranks(),
        **deployment.env,
    }
    return Server(
        name=part.name,
        argv=argv,
        probe=(*words, "serve"),
        place=place,
        env=env,
        pass_env=tuple(deployment.pass_env),
        files=files,
        front_ends=command_line.count_front_ends(deployment.extra_args, part.content),
    )


def _worker(
    deployment: Disaggregated,
    context: LaunchContext,
    part: Part,
    place: Place,
    words: Sequence[str],
    model: str,
    section: Mapping[str, Any] | None,
    ways: Ways | None,
) -> Server:
    side = deployment.sides[part.kind]
    config_file = context.log_dir / f"{part.kind}.yaml"
    content = part.content if section is None else {**part.content, "disagg_cluster": section}
    argv = command_line.serve(
        words,
        side.model or model,
        host=place.host,
        port=place.port,
        options=part.given,
        config=part.content,
        config_file=config_file,
        role=role(part.kind) if deployment.discovery else None,
        extra_args=side.extra_args,
        where=f"launcher.{part.kind}",
    )
    ucx = kv_transfer.variables(part.transfer_backend, ways)
    return Server(
        name=part.name,
        argv=argv,
        probe=(*words, "serve"),
        place=place,
        env={
            "CUDA_VISIBLE_DEVICES": ",".join(place.gpus),
            **kv_transfer.for_ranks(),
            **ucx,
            **deployment.env,
            **side.env,
        },
        pass_env=tuple(deployment.pass_env),
        files={config_file: command_line.to_yaml(content)},
        auth_key=deployment.auth_key,
        front_ends=command_line.count_front_ends(side.extra_args, part.content),
    )


def _orchestrator(
    deployment: Disaggregated,
    context: LaunchContext,
    placed: Sequence[tuple[Part, Place]],
    words: Sequence[str],
    section: Mapping[str, Any] | None,
    ready_timeout_s: float,
) -> Server:
    sides, place = deployment.sides, placed[-1][1]
    addresses = {
        kind: [f"{p.reached_at}:{p.port}" for part, p in placed if part.kind == kind]
        for kind in sides
    }
    routers = {kind: side.router for kind, side in sides.items()}
    more, env = deployment.orchestrator, {"TRTLLM_DISAGG_NO_RETRY": "1", **deployment.env}
    told = None
    if deployment.perf_metrics:
        more = {**disaggregated.orchestrator_keys(context.log_dir), **more}
        env = {**disaggregated.orchestrator_env(context.log_dir), **env}
        told = disaggregated.locate_folders(more, env)
    content = disaggregated.orchestrator(place.host, place.port, addresses, routers, section, more)
    file = context.log_dir / f"{ORCHESTRATOR}.yaml"
    limit = deployment.request_timeout_s or max(REQUEST_S, math.ceil(2 * context.patience_s))
    if limit <= context.patience_s:
        raise PlanError(
            f"launcher.request_timeout_s: the orchestrator would give up after {limit} s, before"
            f" the client, which waits for {context.patience_s:g} s",
            hint="Leave it out, or make it longer than limits.sample_timeout_s.",
        )
    start_limit = math.ceil(ready_timeout_s) + START_MARGIN_S
    return Server(
        name=ORCHESTRATOR,
        argv=(*words, "disaggregated", "-c", str(file), "-t", str(start_limit), "-r", str(limit)),
        probe=(*words, "disaggregated"),
        place=place,
        env=env,
        pass_env=tuple(deployment.pass_env),
        files={file: command_line.to_yaml(content)},
        folders=(
            tuple(Path(one) for one in (told.output_dir, told.trace_dir) if one is not None)
            if told
            else ()
        ),
        perf_metrics=told,
        auth_key=deployment.auth_key,
        further_ports=disaggregated.list_coordinator_ports(place.port, content),
        front_ends=content.get(disaggregated.FLEET, 1),
        refused=disaggregated.list_refused(section, place.host),
    )
