"""Deployments as a plan names them: one trtllm-serve, or context and generation servers with their
orchestrator.

Pure. `parts` says what there will be and how many GPUs each part needs; whoever places them gives
every part a Place; `servers` makes the command lines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from launchers._options import Env, Variables, WorkerOptions
from launchers._trtllm import kv_transfer
from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import LaunchContext

Model = Annotated[
    str | None,
    Setting("What is loaded: a name of the hub, or a folder. Not set: the plan's model."),
]
Backend = Annotated[
    str | None, Setting("The --backend of trtllm-serve. Not set: the version's own.")
]


@dataclass(frozen=True, kw_only=True)
class ServeCommand(Variables):
    """Choose the command that starts trtllm-serve, and its environment."""

    pass_env: Annotated[
        list[str],
        Setting(
            "Names of your variables that servers get in addition to those of docs/trust.md, also"
            " in a container."
        ),
    ] = field(default_factory=list)
    command: Annotated[str | list[str], Setting("The executable, or all words before serve.")] = (
        "trtllm-serve"
    )


@dataclass(frozen=True, kw_only=True)
class Aggregated(WorkerOptions, ServeCommand):
    """Choose the model and the backend of one server."""

    model: Model = None
    backend: Backend = None


@dataclass(frozen=True, kw_only=True)
class ServerSide(WorkerOptions):
    """Choose the number and the options of the servers of one role. `env` adds to that of all
    servers.
    """

    num_instances: Annotated[int, Setting("How many of these servers there are.")] = 1
    router: Annotated[
        str | dict[str, Any] | None,
        Setting(
            "How the orchestrator chooses among these servers: a type, or a mapping that has one."
        ),
    ] = None
    env: Env = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Disaggregated(ServeCommand):
    """Context and generation servers behind an orchestrator, the front door.

    `discovery`: the servers are not listed in the orchestrator's file. `perf_metrics` is written
    below the logs. `request_timeout_s` None: twice what the client waits for a sample, at least
    7200 s.
    """

    model: Model = None
    context_servers: Annotated[ServerSide, Setting("The servers that read prompts.")] = field(
        default_factory=ServerSide
    )
    generation_servers: Annotated[ServerSide, Setting("The servers that generate.")] = field(
        default_factory=ServerSide
    )
    backend: Backend = None
    cache_transceiver: Annotated[
        dict[str, Any],
        Setting("The cache_transceiver_config of both sides, unless both configs have the same."),
    ] = field(default_factory=lambda: {"backend": kv_transfer.BACKEND})
    discovery: Annotated[
        bool | str,
        Setting("The servers register with the orchestrator, or with an etcd (etcd://HOST:PORT)."),
    ] = False
    auth_key: Annotated[
        bool | None,
        Setting(
            "The servers share a key that is drawn for the launch. Not set: where their version has"
            " one."
        ),
    ] = None
    orchestrator: Annotated[dict[str, Any], Setting("Further keys of the orchestrator's file.")] = (
        field(default_factory=dict)
    )
    perf_metrics: Annotated[
        bool,
        Setting(
            "The report says which server had which request. Some versions write prompts down"
            " for it."
        ),
    ] = False
    request_timeout_s: Annotated[
        int | None,
        Setting(
            "The orchestrator's limit for a request in seconds. Not set: twice the client's, or"
            " 7200."
        ),
    ] = None

    @property
    def sides(self) -> dict[str, ServerSide]:
        """The servers by their kind."""
        return {
            "context_servers": self.context_servers,
            "generation_servers": self.generation_servers,
        }


Deployment = Aggregated | Disaggregated


@dataclass(frozen=True, kw_only=True)
class DeploymentChoice:
    """Choose an aggregated or a disaggregated deployment. Without either, one server is started."""

    trtllm: Annotated[
        Aggregated | None,
        Setting("One server is started, with these options of the launcher trtllm."),
    ] = None
    trtllm_disaggregated: Annotated[
        Disaggregated | None,
        Setting(
            "Servers and their orchestrator are started, with these options of"
            " trtllm_disaggregated."
        ),
    ] = None


def choose_deployment(options: DeploymentChoice) -> Deployment:
    """Return the deployment that the options name; one server without either. Raises PlanError for
    both.
    """
    named = [one for one in (options.trtllm, options.trtllm_disaggregated) if one is not None]
    if len(named) > 1:
        raise PlanError(
            "launcher: trtllm and trtllm_disaggregated are two ways to serve a model: give one of"
            " them"
        )
    return named[0] if named else Aggregated()


def name_model(deployment: Deployment, context: LaunchContext) -> str:
    """What is loaded. Raises PlanError when neither the launcher nor the plan names it."""
    model = deployment.model or context.model
    if model is None:
        raise PlanError("launcher.model: required: a name of the hub or a folder with a checkpoint")
    return model


def role(kind: str) -> str:
    """`context` or `generation`."""
    return kind.removesuffix("_servers")
