"""What is served, before it has a place: one trtllm-serve, or context and generation servers with their orchestrator.

Pure, but for config files that a plan names. `parts` says what there will be and how many GPUs each needs; whoever
places them gives every part a Place; `servers` makes the command lines.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from launchers import _disaggregated, _environment, _kv_transfer, _metrics, _mpi, _trtllm_command
from launchers._kv_transfer import Ways
from launchers._trtllm_command import Place, Server
from serve_eval.errors import PlanError
from serve_eval.schema import KvTransfer, LaunchContext

REQUEST_S = 7200
"""The least time that the orchestrator gives a request; its own default of 180 s cuts long answers."""
START_MARGIN_S = 60
"""By how much longer than we the orchestrator waits for its servers, so that it is us who tell which one is late."""
ORCHESTRATOR = "orchestrator"


class Options(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Options by their names on the command line and in a plan."""


class Aggregated(Options, frozen=True, kw_only=True):
    """One server. `model` is what is loaded (None: the plan's model), `config` a YAML file of LlmArgs or its content,
    `command` the executable or what stands before `serve`, `pass_env` names of variables that it inherits besides."""

    model: str | None = None
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    backend: str | None = None
    config: str | dict[str, Any] | None = None
    extra_args: list[str] = []
    env: dict[str, str | None] = {}
    pass_env: list[str] = []
    command: str | list[str] = "trtllm-serve"


class Side(Options, frozen=True, kw_only=True):
    """The servers of one kind. `env` comes on top of that of all; `router` is a type or a mapping with one."""

    num_instances: int = 1
    tp: int | None = None
    pp: int | None = None
    cp: int | None = None
    ep: int | None = None
    config: str | dict[str, Any] | None = None
    extra_args: list[str] = []
    env: dict[str, str | None] = {}
    router: str | dict[str, Any] | None = None


class Disaggregated(Options, frozen=True, kw_only=True):
    """Context and generation servers behind an orchestrator, the front door.

    `cache_transceiver` is the cache_transceiver_config of both sides, unless both configs have the same. `discovery`:
    the servers register with the orchestrator, or in an etcd (etcd://HOST:PORT), instead of being listed in its file,
    to which `orchestrator` adds further keys. `auth_key`: they share a key that is drawn for the launch (None: where
    their version has one). `perf_metrics`: which servers had which request is kept for whoever reads it, and written
    below the logs.
    `request_timeout_s` is the orchestrator's limit per request (None: twice what the client waits for a sample, at
    least 7200 s).
    """

    model: str | None = None
    context_servers: Side = Side()
    generation_servers: Side = Side()
    backend: str | None = None
    cache_transceiver: dict[str, Any] = msgspec.field(default_factory=lambda: {"backend": _kv_transfer.BACKEND})
    discovery: bool | str = False
    auth_key: bool | None = None
    orchestrator: dict[str, Any] = {}
    perf_metrics: bool = False
    env: dict[str, str | None] = {}
    pass_env: list[str] = []
    command: str | list[str] = "trtllm-serve"
    request_timeout_s: int | None = None


Deployment = Aggregated | Disaggregated


def picked(kind: type[Any], options: Mapping[str, Any]) -> Any:
    """A struct of those of the options that are its own."""
    return kind(**{name: options[name] for name in kind.__struct_fields__ if name in options})


def chosen(options: Mapping[str, Any]) -> Deployment:
    """What the options `trtllm` and `trtllm_disaggregated` of a launcher say; one server without either.

    Raises PlanError for both.
    """
    named = [one for name in ("trtllm", "trtllm_disaggregated") if (one := options[name]) is not None]
    if len(named) > 1:
        raise PlanError("launcher: trtllm and trtllm_disaggregated are two ways to serve a model: give one of them")
    found: Deployment = named[0] if named else Aggregated()
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A server to be placed: `width` GPUs (an orchestrator: none) for tp * pp * cp ranks. `given` are the options that
    go to its command line, `content` is that of its config file."""

    name: str
    kind: str
    width: int
    given: Mapping[str, Any] = field(default_factory=dict)
    content: Mapping[str, Any] = field(default_factory=dict)


def parts(deployment: Deployment, context: LaunchContext) -> list[Part]:
    """One server; or context servers, generation servers and the orchestrator, in this order. The last is the front.

    Raises PlanError for options that contradict each other.
    """
    served(deployment, context)
    _environment.check(deployment.env, "launcher.env")
    _environment.check_names(deployment.pass_env, "launcher.pass_env")
    _environment.check_words(_trtllm_command.words(deployment.command), "launcher.command")
    if isinstance(deployment, Aggregated):
        _environment.check_words(deployment.extra_args, "launcher.extra_args")
        content = _trtllm_command.read_config(deployment.config, "launcher.config")
        return [_part("trtllm", "trtllm", deployment, deployment.backend, content, "launcher")]
    sides = _sides(deployment)
    _disaggregated.etcd(deployment.discovery)
    for kind, side in sides.items():
        _environment.check(side.env, f"launcher.{kind}.env")
        _environment.check_words(side.extra_args, f"launcher.{kind}.extra_args")
        if side.num_instances < 1:
            raise PlanError(f"launcher.{kind}.num_instances: must be 1 or more")
    read = [_trtllm_command.read_config(side.config, f"launcher.{kind}.config") for kind, side in sides.items()]
    types = [_trtllm_command.value_of("--kv_cache_dtype", side.extra_args) for side in sides.values()]
    if deployment.perf_metrics:
        read = [{**_metrics.WORKER, **content} for content in read]
    contents = _disaggregated.agreed(read[0], read[1], deployment.cache_transceiver, types)
    found = [
        _part(f"{role(kind)}_{i}", kind, side, deployment.backend, content, f"launcher.{kind}")
        for (kind, side), content in zip(sides.items(), contents, strict=True)
        for i in range(side.num_instances)
    ]
    return [*found, Part(name=ORCHESTRATOR, kind=ORCHESTRATOR, width=0)]


def servers(
    deployment: Deployment,
    context: LaunchContext,
    placed: Sequence[tuple[Part, Place]],
    *,
    ready_timeout_s: float,
    ways: Ways | None = Ways(),  # noqa: B008 - frozen
    tag: str | None = None,
) -> list[Server]:
    """What to start, in the order of the parts. `ways` is what is known of the one machine that all of them share, for
    which settings of UCX are made (None: they are on several). `tag` is the launch's own name.

    Raises PlanError for extra arguments that are the launcher's own and for time limits that contradict each other.
    """
    words = _trtllm_command.words(deployment.command)
    model = served(deployment, context)
    if isinstance(deployment, Aggregated):
        [(part, place)] = placed
        return [_aggregated(deployment, context, part, place, words, model)]
    front, section = placed[-1][1], None
    if deployment.discovery:
        counts = [side.num_instances for side in _sides(deployment).values()]
        etcd = _disaggregated.etcd(deployment.discovery)
        section = _disaggregated.cluster(front.reached_at, front.port, *counts, etcd=etcd, tag=tag)
    workers = [_worker(deployment, context, part, place, words, model, section, ways) for part, place in placed[:-1]]
    return [*workers, _orchestrator(deployment, context, placed, words, section, ready_timeout_s)]


def transfer(deployment: Deployment, context: LaunchContext, ways: Ways | None) -> KvTransfer | None:
    """What is told of the transfer between the servers, the context servers' settings of it; None for a single server.
    `ways` None: they are on several machines, and nothing is set."""
    if isinstance(deployment, Aggregated):
        return None
    backend = _backend(parts(deployment, context)[0])
    env: Mapping[str, str | None] = {**deployment.env, **deployment.context_servers.env}
    return _kv_transfer.summary(backend, ways, env)


def served(deployment: Deployment, context: LaunchContext) -> str:
    """What is loaded. Raises PlanError when neither the launcher nor the plan names it."""
    model = deployment.model or context.model
    if model is None:
        raise PlanError("launcher.model: required: a name of the hub or a folder with a checkpoint")
    return model


def role(kind: str) -> str:
    """`context` or `generation`."""
    return kind.removesuffix("_servers")


def _sides(deployment: Disaggregated) -> dict[str, Side]:
    return {"context_servers": deployment.context_servers, "generation_servers": deployment.generation_servers}


def _part(
    name: str, kind: str, options: Aggregated | Side, backend: str | None, content: Mapping[str, Any], where: str
) -> Part:
    given = {"tp": options.tp, "pp": options.pp, "cp": options.cp, "ep": options.ep, "backend": backend}
    width = _trtllm_command.width(_trtllm_command.once(given, content, where), where)
    return Part(name=name, kind=kind, width=width, given=given, content=content)


def _aggregated(
    deployment: Aggregated, context: LaunchContext, part: Part, place: Place, words: Sequence[str], model: str
) -> Server:
    files, config_file = {}, None
    if isinstance(deployment.config, str):
        config_file = Path(deployment.config).expanduser().absolute()
    elif part.content:
        config_file = context.log_dir / f"{part.name}.yaml"
        files[config_file] = _trtllm_command.to_yaml(part.content)
    argv = _trtllm_command.serve(
        words,
        model,
        host=place.host,
        port=place.port,
        options=part.given,
        config=part.content,
        config_file=config_file,
        extra_args=deployment.extra_args,
    )
    env = {"CUDA_VISIBLE_DEVICES": ",".join(place.gpus), **_mpi.for_ranks(), **deployment.env}
    return Server(
        name=part.name,
        argv=argv,
        probe=(*words, "serve"),
        place=place,
        env=env,
        pass_env=tuple(deployment.pass_env),
        files=files,
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
    side = _sides(deployment)[part.kind]
    config_file = context.log_dir / f"{part.kind}.yaml"
    content = part.content if section is None else {**part.content, "disagg_cluster": section}
    argv = _trtllm_command.serve(
        words,
        model,
        host=place.host,
        port=place.port,
        options=part.given,
        config=part.content,
        config_file=config_file,
        role=role(part.kind) if deployment.discovery else None,
        extra_args=side.extra_args,
        where=f"launcher.{part.kind}",
    )
    ucx = _kv_transfer.variables(_backend(part), ways)
    return Server(
        name=part.name,
        argv=argv,
        probe=(*words, "serve"),
        place=place,
        env={"CUDA_VISIBLE_DEVICES": ",".join(place.gpus), **_mpi.for_ranks(), **ucx, **deployment.env, **side.env},
        pass_env=tuple(deployment.pass_env),
        files={config_file: _trtllm_command.to_yaml(content)},
        auth_key=deployment.auth_key,
    )


def _backend(part: Part) -> str:
    return str(part.content[_disaggregated.TRANSCEIVER]["backend"])


def _orchestrator(
    deployment: Disaggregated,
    context: LaunchContext,
    placed: Sequence[tuple[Part, Place]],
    words: Sequence[str],
    section: Mapping[str, Any] | None,
    ready_timeout_s: float,
) -> Server:
    sides, place = _sides(deployment), placed[-1][1]
    addresses = {kind: [f"{p.reached_at}:{p.port}" for part, p in placed if part.kind == kind] for kind in sides}
    routers = {kind: side.router for kind, side in sides.items()}
    more, env = deployment.orchestrator, {"TRTLLM_DISAGG_NO_RETRY": "1", **deployment.env}
    told = None
    if deployment.perf_metrics:
        more = {**_metrics.orchestrator_keys(context.log_dir), **more}
        env = {**_metrics.orchestrator_env(context.log_dir), **env}
        told = _metrics.told(more, env)
    content = _disaggregated.orchestrator(place.host, place.port, addresses, routers, section, more)
    file = context.log_dir / f"{ORCHESTRATOR}.yaml"
    limit = deployment.request_timeout_s or max(REQUEST_S, math.ceil(2 * context.patience_s))
    if limit <= context.patience_s:
        raise PlanError(
            f"launcher.request_timeout_s: the orchestrator would give up after {limit} s, before the client, which "
            f"waits for {context.patience_s:g} s",
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
        files={file: _trtllm_command.to_yaml(content)},
        folders=tuple(Path(one) for one in (told.output_dir, told.trace_dir) if one is not None) if told else (),
        perf_metrics=told,
        auth_key=deployment.auth_key,
        refused=_disaggregated.refused(section, place.host),
    )
