"""Groups of options that launchers share. Each option is declared once, with its help.

A launcher's structure takes these as bases: its own options come first, then those of its bases in
their order. Every structure is a frozen dataclass of the form that
`serve_eval/plugins/declarations.py` describes. "Not set" is None.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from launchers._machine.local_gpus import Named
from serve_eval.plugins.setting import Setting

LOOPBACK = "127.0.0.1"
Env = Annotated[
    dict[str, str | None], Setting("Variables that servers get; null removes one. No secrets.")
]


@dataclass(frozen=True, kw_only=True)
class Variables:
    """Add variables to the environment that servers always inherit."""

    env: Env = field(default_factory=dict)
    pass_env: Annotated[
        list[str],
        Setting("Names of your variables that servers get in addition to those of docs/trust.md."),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class GpuChoice:
    """Choose the GPUs of this machine."""

    gpus: Annotated[
        Named,
        Setting(
            "GPUs by number or UUID, as in [0, 1], or auto, which takes free ones. Not set: those"
            " of CUDA_VISIBLE_DEVICES, else the first ones."
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class FrontDoor:
    """Choose the address of the server that receives the requests."""

    host: Annotated[str, Setting("The address that the front door binds.")] = LOOPBACK
    port: Annotated[int | None, Setting("The port of the front door. Not set: a free one.")] = None


ReadyTimeout = Annotated[float, Setting("How many seconds the servers may take to load.")]
StopTimeout = Annotated[
    float, Setting("Seconds between SIGTERM and SIGKILL when the servers are stopped.")
]


@dataclass(frozen=True, kw_only=True)
class TimeLimits:
    """Limit the seconds that servers may take to start, to give a first answer and to end."""

    ready_timeout_s: ReadyTimeout = 3600.0
    answer_timeout_s: Annotated[
        float, Setting("How many seconds the first completion may take.")
    ] = 600.0
    stop_timeout_s: StopTimeout = 30.0


@dataclass(frozen=True, kw_only=True)
class WorkerOptions:
    """Choose the options of a trtllm-serve that computes."""

    tp: Annotated[
        int | None,
        Setting(
            "Tensor parallelism: the number of GPUs that share every layer. Not set: the version's"
            " own, 1."
        ),
    ] = None
    pp: Annotated[
        int | None,
        Setting("Pipeline parallelism: the number of groups of GPUs that share out the layers."),
    ] = None
    cp: Annotated[
        int | None,
        Setting("Context parallelism: the number of groups of GPUs that share a prompt."),
    ] = None
    ep: Annotated[
        int | None, Setting("Expert parallelism: the number of GPUs that share the experts.")
    ] = None
    config: Annotated[
        str | dict[str, Any] | None, Setting("A YAML file of LlmArgs, or its content as a mapping.")
    ] = None
    extra_args: Annotated[
        list[str],
        Setting(
            "Further words of the command line. What has an option or stands in the config is"
            " refused."
        ),
    ] = field(default_factory=list)


@dataclass(frozen=True, kw_only=True)
class EngineOptions(Variables, FrontDoor, TimeLimits):
    """Choose how one server of an engine other than TensorRT-LLM runs on this machine."""

    gpus: Annotated[
        Named,
        Setting(
            "GPUs by number or UUID, as in [0, 1], or auto, which takes a free one. Not set: what"
            " is inherited, and no lock."
        ),
    ] = None
    extra_args: Annotated[
        list[str],
        Setting("Further words of the command line. A flag that the launcher sets is refused."),
    ] = field(default_factory=list)
    stop_timeout_s: StopTimeout = 10.0
