"""Groups of options that launchers share, each option declared once with its help.

The options of a launcher inherit from these groups: its own options come first, then those of its
bases in their order. Every group is a frozen dataclass of the form that
`serve_eval/plugins/declarations.py` describes. None means "not set".
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from serve_eval.launchers._machine.local_gpus import Named
from serve_eval.plugins.setting import Setting

LOOPBACK = "127.0.0.1"
Env = Annotated[
    dict[str, str | None], Setting("Variables for the servers; null removes one. No secrets.")
]


@dataclass(frozen=True, kw_only=True)
class Variables:
    """Add variables to the environment that servers always inherit."""

    env: Env = field(default_factory=dict)
    pass_env: Annotated[
        list[str],
        Setting(
            "Names of your environment variables to pass to the servers, in addition to those of"
            " docs/trust.md."
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class GpuChoice:
    """Choose the GPUs of this machine."""

    gpus: Annotated[
        Named,
        Setting(
            "GPUs by number or UUID, as in [0, 1], or auto for free ones. Not set:"
            " those of CUDA_VISIBLE_DEVICES, else the first ones."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FrontDoor:
    """Choose the address of the server that receives the requests."""

    host: Annotated[str, Setting("Address that the endpoint listens on.")] = LOOPBACK
    port: Annotated[int | None, Setting("Port of the endpoint. Not set: a free one.")] = None


ReadyTimeout = Annotated[float, Setting("Seconds that the servers may take to load.")]
StopTimeout = Annotated[float, Setting("Seconds between SIGTERM and SIGKILL when servers stop.")]


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Limit the seconds that servers may take to start, to give a first answer and to end."""

    ready_timeout_s: ReadyTimeout = 3600.0
    answer_timeout_s: Annotated[float, Setting("Seconds that the first completion may take.")] = (
        600.0
    )
    stop_timeout_s: StopTimeout = 30.0


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Choose the options of a trtllm-serve that computes."""

    tp: Annotated[
        int | None,
        Setting(
            "Tensor parallelism: the number of GPUs that share every layer. Not set:"
            " the version's default, 1."
        ),
    ] = None
    pp: Annotated[
        int | None,
        Setting("Pipeline parallelism: the number of groups of GPUs that divide the layers."),
    ] = None
    cp: Annotated[
        int | None,
        Setting("Context parallelism: the number of groups of GPUs that divide a prompt."),
    ] = None
    ep: Annotated[
        int | None, Setting("Expert parallelism: the number of GPUs that divide the experts.")
    ] = None
    config: Annotated[
        str | dict[str, Any] | None, Setting("YAML file of LlmArgs, or its content as a mapping.")
    ] = None
    extra_args: Annotated[
        list[str],
        Setting(
            "Further words for the command line. Flags that have an option or are in"
            " the config are refused."
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Variables, FrontDoor, TimeLimits):
    """Choose how one server of an engine other than TensorRT-LLM runs on this machine."""

    gpus: Annotated[
        Named,
        Setting(
            "GPUs by number or UUID, as in [0, 1], or auto for a free one. Not set:"
            " GPUs are inherited and not locked."
        ),
    ] = None
    extra_args: Annotated[
        list[str],
        Setting("Further words for the command line. Flags that the launcher sets are refused."),
    ] = field(default_factory=list)
    stop_timeout_s: StopTimeout = 10.0
