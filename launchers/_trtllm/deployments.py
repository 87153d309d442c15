"""Deployments as a plan names them: one trtllm-serve, or context and generation servers with their orchestrator.

Pure. `parts` says what there will be and how many GPUs each part needs; whoever places them gives every part a Place;
`servers` makes the command lines.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from launchers._trtllm import kv_transfer
from serve_eval.errors import PlanError
from serve_eval.schema import LaunchContext


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


class ServerSide(Options, frozen=True, kw_only=True):
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
    context_servers: ServerSide = ServerSide()
    generation_servers: ServerSide = ServerSide()
    backend: str | None = None
    cache_transceiver: dict[str, Any] = msgspec.field(default_factory=lambda: {"backend": kv_transfer.BACKEND})
    discovery: bool | str = False
    auth_key: bool | None = None
    orchestrator: dict[str, Any] = {}
    perf_metrics: bool = False
    env: dict[str, str | None] = {}
    pass_env: list[str] = []
    command: str | list[str] = "trtllm-serve"
    request_timeout_s: int | None = None

    @property
    def sides(self) -> dict[str, ServerSide]:
        """The servers by their kind."""
        return {"context_servers": self.context_servers, "generation_servers": self.generation_servers}


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


def served(deployment: Deployment, context: LaunchContext) -> str:
    """What is loaded. Raises PlanError when neither the launcher nor the plan names it."""
    model = deployment.model or context.model
    if model is None:
        raise PlanError("launcher.model: required: a name of the hub or a folder with a checkpoint")
    return model


def role(kind: str) -> str:
    """`context` or `generation`."""
    return kind.removesuffix("_servers")
