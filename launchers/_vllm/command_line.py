"""Options of one vLLM server, and the flags that they become. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from serve_eval.errors import PlanError
from serve_eval.launchers._trtllm.command_line import words
from serve_eval.plugins.setting import Setting
from serve_eval.schema import LaunchContext

Command = Annotated[
    str | list[str],
    Setting(
        "All words before the options. After serve the model is the next word, otherwise the value"
        " of --model."
    ),
]
COMMAND = "vllm serve"
ENV = {"VLLM_NO_USAGE_STATS": "1"}
"""A server for a test reports nothing to vLLM's developers, unless `env` allows it."""
SHORT = {"-tp": "--tensor-parallel-size", "-q": "--quantization", "-sc": "--speculative-config"}
LEAST = {"max_model_len": 1, "tp": 1, "block_size": 1}


@dataclass(frozen=True, kw_only=True)
class VllmServerOptions:
    """Choose how a vLLM server computes. An option that is not set keeps vLLM's default."""

    max_model_len: Annotated[
        int | None, Setting("Maximum tokens of a prompt and its answer (--max-model-len).")
    ] = None
    dtype: Annotated[str | None, Setting("Value of --dtype, such as bfloat16.")] = None
    quantization: Annotated[str | None, Setting("Value of --quantization, such as fp8.")] = None
    tp: Annotated[
        int | None, Setting("Tensor parallelism: the number of GPUs that share every layer.")
    ] = None
    block_size: Annotated[
        int | None, Setting("Tokens in a block of the KV cache (--block-size).")
    ] = None
    kv_cache_dtype: Annotated[
        str | None, Setting("Type of the KV cache (--kv-cache-dtype), such as fp8.")
    ] = None
    prefix_caching: Annotated[
        bool | None, Setting("Use the KV cache of earlier prompts with the same beginning, or not.")
    ] = None
    eager: Annotated[
        bool | None, Setting("Compile nothing (--enforce-eager): a faster start, slower answers.")
    ] = None
    speculative: Annotated[
        dict[str, Any] | None, Setting("Content of --speculative-config, with its method.")
    ] = None
    tool_call_parser: Annotated[
        str | None,
        Setting("Value of --tool-call-parser, such as hermes. Also lets the model choose tools."),
    ] = None


def build_flags(options: VllmServerOptions, where: str) -> dict[str, object]:
    """Return the flags of a server in order; None for those that are not set.

    Raises PlanError for a value out of range; `where` is the place of the options in a plan.
    """
    for name, least in LEAST.items():
        if (value := getattr(options, name)) is not None and value < least:
            raise PlanError(f"{where}.{name}: {value} is less than {least}")
    caching, speculative = options.prefix_caching, options.speculative
    return {
        "--max-model-len": options.max_model_len,
        "--dtype": options.dtype,
        "--quantization": options.quantization,
        "--tensor-parallel-size": options.tp,
        "--block-size": options.block_size,
        "--kv-cache-dtype": options.kv_cache_dtype,
        "--enable-prefix-caching": caching,
        "--no-enable-prefix-caching": caching is False,
        "--enforce-eager": options.eager,
        "--speculative-config": None if speculative is None else json.dumps(speculative),
        "--enable-auto-tool-choice": options.tool_call_parser is not None,
        "--tool-call-parser": options.tool_call_parser,
        # Without it, answers do not report the prompt tokens that came from the prefix cache.
        "--enable-prompt-tokens-details": True,
    }


def begin(
    command: str | Sequence[str], model: str, context: LaunchContext, host: str, port: int
) -> tuple[list[str], dict[str, object]]:
    """Return the words of a command line up to the model, and the flags that every server has."""
    argv, ours = list(words(command)), dict[str, object]()
    if argv[-1] == "serve":
        argv.append(model)
    else:
        ours["--model"] = model
    ours |= {
        "--served-model-name": choose_name(context, model),
        "--host": host,
        "--port": port,
    }
    return argv, ours


def choose_name(context: LaunchContext, model: str) -> str:
    """Return the name of the model in requests."""
    folder = Path(model)
    return context.model or (folder.name if folder.is_absolute() else model)


def check_extra(extra_args: Sequence[str], flags: Mapping[str, object], where: str) -> None:
    """Raise PlanError for a flag of the launcher, in any spelling that vLLM understands."""
    for word in extra_args:
        name = word.partition("=")[0]
        long = SHORT.get(name, name.replace("_", "-") if name.startswith("--") else name)
        # --speculative-config.method sets one key of the mapping.
        if long.partition(".")[0] in flags:
            raise PlanError(
                f"{where}.extra_args: {name} is set by the launcher: use the launcher's option"
                " for it"
            )
