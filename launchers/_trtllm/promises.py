"""The path that a deployment of trtllm-serve promises, and options that disagree.

Pure, except for config files that a plan names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from serve_eval.launchers._options.agreement import (
    SharedOption,
    describe_speculation,
    list_differences,
    warn_of_chunks,
)
from serve_eval.launchers._trtllm import command_line
from serve_eval.launchers._trtllm.deployments import (
    Aggregated,
    Deployment,
    Disaggregated,
    ServerSide,
)

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
