"""The path that vLLM servers promise, and options of both sides that disagree. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from serve_eval.launchers._options.agreement import (
    SharedOption,
    describe_speculation,
    list_differences,
    warn_of_chunks,
)
from serve_eval.launchers._trtllm.command_line import value_of
from serve_eval.launchers._vllm.command_line import VllmServerOptions
from serve_eval.launchers._vllm.deployment import VllmDisaggregatedOptions, VllmSide, merge_side

FLAGS: Mapping[str, str] = {
    "--chat-template": "the same messages become other tokens, so that their KV caches differ",
    "--tokenizer": "the same text becomes other tokens, so that its KV cache differs",
    "--hf-overrides": "the sides compute another model",
    "--revision": "the sides load another model",
}
"""Flags among further words that should be equal, each with the reason."""
QUANTIZATION = "the sides compute with another precision"


def list_expected(options: VllmServerOptions) -> list[str]:
    """Return what the servers promise: a transfer of the KV cache, and speculation."""
    if not isinstance(options, VllmDisaggregatedOptions):
        return ["speculation"] if options.speculative else []
    generation = merge_side(options, options.generation_servers)
    return ["kv_transfer", *(["speculation"] if generation.speculative else [])]


def list_disagreements(options: VllmDisaggregatedOptions) -> list[str]:
    """Return warnings about options of both sides that should be equal."""
    context, generation = (merge_side(options, side) for side in options.sides.values())
    shared = [
        SharedOption(flag, _flag(options, context, flag), _flag(options, generation, flag), why)
        for flag, why in FLAGS.items()
    ]
    shared += [
        SharedOption("quantization", context.quantization, generation.quantization, QUANTIZATION),
        describe_speculation(context.speculative, generation.speculative, "method"),
    ]
    limit = _flag(options, context, "--max-num-batched-tokens")
    words = {_spell(word) for word in (*options.extra_args, *context.extra_args)}
    return [
        *list_differences(shared),
        *warn_of_chunks(
            int(limit) if limit is not None and limit.isdecimal() else None,
            False if "--no-enable-chunked-prefill" in words else None,
            generation.max_model_len,
        ),
    ]


def _flag(options: VllmDisaggregatedOptions, side: VllmSide, flag: str) -> str | None:
    """Return the value of a flag among the further words of a server; the last one counts."""
    words = [
        word if not word.startswith("--") else _spell(word)
        for word in (*options.extra_args, *side.extra_args)
    ]
    return value_of(flag, words)


def _spell(word: str) -> str:
    """Return a flag in vLLM's own spelling, which has hyphens."""
    name, equals, value = word.partition("=")
    return name.replace("_", "-") + equals + value
