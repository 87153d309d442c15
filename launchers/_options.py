"""Declare the options that several launchers share, and compare those of both sides.

The options of a launcher inherit from these groups: its own options come first, then those of its
bases in their order. Every group is a frozen dataclass of the form that
`serve_eval/plugins/declarations.py` describes. None means "not set".

Only what certainly cannot work is an error, and other modules raise it. The rest is a warning that
names both values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

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


Model = Annotated[str | None, Setting("Folder, or name on the hub. Not set: the plan's model.")]
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


OWN_DRAFTS = ("ngram", "suffix", "user_provided")
"""Methods of speculation that find drafts in the text, and so need no KV cache of their own."""


class SharedOption(NamedTuple):
    """An option in which both sides should agree: what it sets, both values, and why."""

    what: str
    context: Any
    generation: Any
    why: str


def list_differences(options: Sequence[SharedOption]) -> Iterator[str]:
    """Yield a warning for each option whose values differ."""
    for one in options:
        if one.context != one.generation:
            yield (
                f"context servers have {one.what} {_show(one.context)}, generation servers"
                f" {_show(one.generation)}: {one.why}"
            )


def describe_speculation(
    context: Mapping[str, Any] | None, generation: Mapping[str, Any] | None, method: str
) -> SharedOption:
    """Return the option of speculation; equal if neither side needs a KV cache for its drafts.

    `method` is the key of its method.
    """
    needed = [
        None if side is None or str(side.get(method, "")).lower() in OWN_DRAFTS else dict(side)
        for side in (context, generation)
    ]
    return SharedOption(
        "speculation",
        needed[0],
        needed[1],
        "a side without it makes no KV cache for the drafts of the other (sglang PR 17212)",
    )


def warn_of_chunks(limit: object, chunked: bool | None, longest: object) -> Iterator[str]:
    """Yield a warning if context servers refuse prompts that generation servers would take.

    `limit` is the number of tokens in a step of the context servers, `chunked` True if they split
    longer prompts, and `longest` the longest sequence of the generation servers.
    """
    if isinstance(limit, int) and isinstance(longest, int) and chunked is False and limit < longest:
        yield (
            f"context servers process at most {limit} tokens in a step and split no prompt, and"
            f" generation servers take up to {longest}: a longer prompt is refused"
        )


def _show(value: object) -> str:
    return "not set" if value is None else str(value)
