"""Read the deployment in a plan, and the path that it promises.

Pure. `parts` lists the servers and the GPUs that each needs. The launcher gives every part a Place,
and `servers` builds the command lines.

Pure, except for config files that a plan names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from serve_eval.errors import PlanError
from serve_eval.launchers._options import (
    Env,
    SharedOption,
    Variables,
    WorkerOptions,
    describe_speculation,
    list_differences,
    warn_of_chunks,
)
from serve_eval.launchers._trtllm import command_line, kv_transfer
from serve_eval.plugins.setting import Setting
from serve_eval.schema import LaunchContext

Model = Annotated[
    str | None,
    Setting("Model to load: a name on the hub, or a folder. Not set: the plan's model."),
]
Backend = Annotated[
    str | None, Setting("Value of trtllm-serve's --backend. Not set: the version's default.")
]


@dataclass(frozen=True, kw_only=True)
class ServeCommand(Variables):
    """Choose the command that starts trtllm-serve, and its environment."""

    pass_env: Annotated[
        list[str],
        Setting(
            "Names of your environment variables to pass to the servers, in addition to those of"
            " docs/trust.md; also to servers in a container."
        ),
    ] = field(default_factory=list)
    command: Annotated[str | list[str], Setting("Executable, or all words before serve.")] = (
        "trtllm-serve"
    )


@dataclass(frozen=True, kw_only=True)
class Aggregated(WorkerOptions, ServeCommand):
    """Choose the model and the backend of one server."""

    model: Model = None
    backend: Backend = None


@dataclass(frozen=True, kw_only=True)
class ServerSide(WorkerOptions):
    """Choose the number, the model and the options of the servers of one role.

    `env` adds to the variables of all servers.
    """

    model: Annotated[
        str | None,
        Setting(
            "Model that these servers load, such as another precision. Not set: the launcher's."
        ),
    ] = None
    num_instances: Annotated[int, Setting("Number of these servers.")] = 1
    router: Annotated[
        str | dict[str, Any] | None,
        Setting(
            "How the orchestrator chooses among these servers: a type, or a mapping with a type."
        ),
    ] = None
    env: Env = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Disaggregated(ServeCommand):
    """Choose context and generation servers behind an orchestrator.

    With `discovery`, the orchestrator's file does not list the servers. `perf_metrics` are written
    below the logs. `request_timeout_s` None: twice the time that the client waits for a sample, at
    least 7200 s.
    """

    model: Model = None
    context_servers: Annotated[ServerSide, Setting("Servers that process prompts.")] = field(
        default_factory=ServerSide
    )
    generation_servers: Annotated[ServerSide, Setting("Servers that generate answers.")] = field(
        default_factory=ServerSide
    )
    backend: Backend = None
    cache_transceiver: Annotated[
        dict[str, Any],
        Setting(
            "The cache_transceiver_config of both sides, unless both configs contain the same one."
        ),
    ] = field(default_factory=lambda: {"backend": kv_transfer.BACKEND})
    discovery: Annotated[
        bool | str,
        Setting(
            "Let the servers register with the orchestrator, or with an etcd (etcd://HOST:PORT)."
        ),
    ] = False
    auth_key: Annotated[
        bool | None,
        Setting(
            "Give the servers a shared key, drawn for the launch. Not set: true if their"
            " version supports one."
        ),
    ] = None
    orchestrator: Annotated[dict[str, Any], Setting("Further keys of the orchestrator's file.")] = (
        field(default_factory=dict)
    )
    perf_metrics: Annotated[
        bool,
        Setting(
            "Report which server handled each request. Some versions write prompts to"
            " disk for this."
        ),
    ] = False
    request_timeout_s: Annotated[
        int | None,
        Setting(
            "Seconds that the orchestrator gives a request. Not set: twice the client's"
            " limit, at least 7200."
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
    """Choose an aggregated or a disaggregated deployment; without either, one server."""

    trtllm: Annotated[
        Aggregated | None,
        Setting("Start one server, with these options of the launcher trtllm."),
    ] = None
    trtllm_disaggregated: Annotated[
        Disaggregated | None,
        Setting(
            "Start servers and their orchestrator, with these options of trtllm_disaggregated."
        ),
    ] = None


def choose_deployment(options: DeploymentChoice) -> Deployment:
    """Return the deployment that the options name, else one server. Raise PlanError for both."""
    named = [one for one in (options.trtllm, options.trtllm_disaggregated) if one is not None]
    if len(named) > 1:
        raise PlanError(
            "launcher: trtllm and trtllm_disaggregated are two ways to serve a model: give only one"
        )
    return named[0] if named else Aggregated()


def name_model(deployment: Deployment, context: LaunchContext) -> str:
    """Return the model to load. Raise PlanError if neither launcher nor plan names it."""
    model = deployment.model or context.model
    if model is None:
        raise PlanError("launcher.model: required: a name on the hub or a folder with a checkpoint")
    return model


def list_models(deployment: Deployment, context: LaunchContext) -> list[str]:
    """Return the models to load, each once. Raise PlanError as `name_model` does."""
    common = name_model(deployment, context)
    if isinstance(deployment, Aggregated):
        return [common]
    return list(dict.fromkeys(side.model or common for side in deployment.sides.values()))


def role(kind: str) -> str:
    """Return `context` or `generation`."""
    return kind.removesuffix("_servers")


SPECULATION, CHUNKED = "speculative_config", "enable_chunked_prefill"
SHARED: Mapping[str, str] = {
    "max_seq_len": "a prompt that one side takes may be refused by the other",
    "tokenizer": "a token then means another text on each side",
    "chat_template": "generation servers get token ids, so that of context servers counts",
    "dtype": "the sides compute with another precision",
    "max_beam_width": "the sides keep another number of beams",
    "max_attention_window": "the sides keep other parts of the KV cache",
}
"""Keys, also flags, that should be equal, each with the reason."""
TWO_MODELS = (
    "one reads the prompts, the other writes the answers, so that the accuracy is that of neither"
)
_WITHIN = {"max_attention_window": "kv_cache_config"}


def list_expected(deployment: Deployment) -> list[str]:
    """Return what the servers promise: a transfer of the KV cache, and speculation.

    A prefix cache is not promised, since it depends on the prompts.
    """
    if isinstance(deployment, Aggregated):
        content = command_line.read_config(deployment.config, "launcher.config")
        return ["speculation"] if content.get(SPECULATION) else []
    generation = _read(deployment, "generation_servers")
    return ["kv_transfer", *(["speculation"] if generation.get(SPECULATION) else [])]


def list_disagreements(deployment: Deployment, model: str | None) -> list[str]:
    """Return warnings about options of both sides that should be equal.

    `model` is the plan's, which sides without one of their own load if the launcher names none.
    """
    if isinstance(deployment, Aggregated):
        return []
    return [*_compare_models(deployment, model), *_compare(deployment)]


def _compare_models(deployment: Disaggregated, model: str | None) -> Iterator[str]:
    common = deployment.model or model
    first, second = (side.model or common for side in deployment.sides.values())
    yield from list_differences([SharedOption("the model", first, second, TWO_MODELS)])


def _compare(deployment: Disaggregated) -> Iterator[str]:
    context, generation = (_read(deployment, kind) for kind in deployment.sides)
    sides = deployment.context_servers, deployment.generation_servers
    options = [
        SharedOption(name, _value(context, sides[0], name), _value(generation, sides[1], name), why)
        for name, why in SHARED.items()
    ]
    options.append(
        describe_speculation(context.get(SPECULATION), generation.get(SPECULATION), "decoding_type")
    )
    yield from list_differences(options)
    yield from warn_of_chunks(
        _value(context, sides[0], "max_num_tokens"),
        bool(context.get(CHUNKED)) or f"--{CHUNKED}" in sides[0].extra_args,
        _value(generation, sides[1], "max_seq_len"),
    )


def _read(deployment: Disaggregated, kind: str) -> dict[str, Any]:
    return command_line.read_config(deployment.sides[kind].config, f"launcher.{kind}.config")


def _value(config: Mapping[str, Any], side: ServerSide, name: str) -> Any:
    """Return the value of a key in the config, or else of the flag of that name."""
    within = config.get(_WITHIN[name]) if name in _WITHIN else config
    if isinstance(within, Mapping) and within.get(name) is not None:
        return within[name]
    given = command_line.value_of(f"--{name}", side.extra_args)
    return int(given) if given is not None and given.isdecimal() else given
