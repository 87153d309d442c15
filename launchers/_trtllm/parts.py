"""Parts of a deployment before they have a place: servers, and the GPUs that each needs.

Pure, except for config files that a plan names.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.launchers._machine.local_gpus import AUTO, Named
from serve_eval.launchers._process import environment
from serve_eval.launchers._trtllm import command_line, disaggregated, kv_transfer, metrics
from serve_eval.launchers._trtllm.deployments import (
    Aggregated,
    Deployment,
    ServerSide,
    name_model,
    role,
)
from serve_eval.launchers._trtllm.kv_transfer import Ways
from serve_eval.schema import JobSize, KvTransfer, LaunchContext

ORCHESTRATOR = "orchestrator"


@dataclass(frozen=True, slots=True, kw_only=True)
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
        read = [{**metrics.WORKER, **content} for content in read]
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
