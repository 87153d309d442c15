"""A recipe: a deployment of trtllm-serve as someone wrote it down, in any of the forms. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.frozen import freeze

Content = Mapping[str, Any]
MOST = 100_000
"""Largest number of servers, nodes, GPUs or seconds that a recipe may name."""
OTHER_ENGINES = {
    "sglang": "SGLang, which no launcher starts",
    "vllm": "vLLM, whose recipes are not converted",
    "mocker": "a mock of an engine",
}
"""Engines of recipes that are refused, with the reason."""
OF_MODEL = "model: "
"""The beginning of what a reader must fill in about the model."""
BY_URL = (
    "Start it as you do, and write a plan for its address: serve-eval setup init URL. To start"
    " vLLM, write a plan with the launcher vllm or vllm_disaggregated."
)


@freeze
class Servers:
    """Equal servers of one role: their LlmArgs, variables and flags, and their number.

    `gpus` is the number of GPUs that the recipe gives to each (None: it does not say). They load
    `model`, or that of the deployment.
    """

    model: str | None = None
    config: Content = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()
    count: int = 1
    gpus: int | None = None

    @property
    def ranks(self) -> int:
        """The number of GPUs that the config asks for."""
        keys = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
        sizes = [self.config.get(key) for key in keys]
        ranks = 1
        for size in sizes:
            ranks *= size if isinstance(size, int) else 1
        return ranks


@freeze
class DeploymentRecipe:
    """A deployment to convert.

    `form` names the kind of file, and `variant` the part of a file with several ("": its only one).
    Either `single` is set, or `context` and `generation` are. `nodes` None: not known.
    `orchestrator` has keys of the orchestrator's file. `unknown` says what the reader must fill in,
    `left_out` what the plan does not have, and why.
    """

    form: str
    name: str
    variant: str = ""
    model: str | None = None
    image: str | None = None
    mounts: tuple[str, ...] = ()
    single: Servers | None = None
    context: Servers | None = None
    generation: Servers | None = None
    backend: str | None = None
    orchestrator: Content = field(default_factory=dict)
    routers: Mapping[str, Any] = field(default_factory=dict)
    discovery: bool = False
    nodes: int | None = None
    gpus_per_node: int | None = None
    sbatch_args: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    ready_timeout_s: int | None = None
    concurrency: tuple[int, ...] = ()
    tasks: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def with_model(self, model: str) -> DeploymentRecipe:
        """Return the recipe with a model that the user names, so that none is left to fill in."""
        unknown = tuple(one for one in self.unknown if not one.startswith(OF_MODEL))
        return replace(self, model=model, unknown=unknown)

    @property
    def groups(self) -> dict[str, Servers]:
        """The servers by the name of their role in a plan; "" for a single server."""
        sides = {"context_servers": self.context, "generation_servers": self.generation}
        found = {"": self.single, **sides}
        return {name: one for name, one in found.items() if one is not None}

    @property
    def gpus(self) -> int:
        """The number of GPUs of all servers."""
        return sum(one.count * one.ranks for one in self.groups.values())


def refuse_engine(engine: str, name: str) -> PlanError:
    """Return the error for a recipe of an engine that is not converted."""
    reason = OTHER_ENGINES.get(engine, f"the engine {engine}, which is not known")
    return PlanError(f"{name}: a recipe for {reason}", hint=BY_URL)


def as_mapping(value: Any, where: str) -> dict[str, Any]:
    """Return a section that may be left out. Raise PlanError if it is no mapping."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise PlanError(f"{where}: expected a mapping, not {str(value)[:60]!r}")
    return dict(value)


def as_list(value: Any, where: str) -> list[Any]:
    """Return a list that may be left out. Raise PlanError for anything else."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise PlanError(f"{where}: expected a list, not {str(value)[:60]!r}")
    return value


def as_count(value: Any, where: str) -> int:
    """Return a number of something. Raise PlanError for anything else."""
    try:
        found = int(value)
    except (TypeError, ValueError):
        found = -1
    if not 0 <= found <= MOST:
        raise PlanError(f"{where}: expected a number, not {str(value)[:60]!r}")
    return found


def as_duration(value: Any) -> str:
    """Return a time limit as sbatch reads it. YAML reads 12:00:00 as seconds, sbatch as minutes."""
    if isinstance(value, int):
        return f"{value // 3600:02}:{value // 60 % 60:02}:{value % 60:02}"
    return str(value)


def as_texts(env: Any, where: str) -> dict[str, str]:
    """Return variables with their values as text."""
    return {
        str(name): ("1" if value is True else "0" if value is False else str(value))
        for name, value in as_mapping(env, where).items()
        if value is not None
    }


def is_placeholder(value: object) -> bool:
    """Return True for an empty value and for a text such as <model_path>."""
    text = "" if value is None else str(value).strip()
    return not text or (text.startswith("<") and text.endswith(">"))
