"""Check the arguments of the model, which lm-eval takes as --model_args."""

from __future__ import annotations

import os
from collections.abc import Iterable

from serve_eval.client.connection import problems
from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest

KNOWN = (
    "base_url",
    "model",
    "concurrency",
    "max_gen_toks",
    "prefix",
    "tokenizer",
    "api_key_env",
    "max_attempts",
)
_OF_LM_EVAL = frozenset({"batch_size", "max_batch_size", "device", "pretrained"})
"""Arguments that lm-eval passes to every model and that a client ignores."""


def check_arguments(others: Iterable[str], api_key_env: str) -> None:
    """Raise PlanError for an unknown argument, and for a variable that holds no usable key."""
    unknown = [name for name in others if name not in _OF_LM_EVAL]
    if unknown:
        raise PlanError(
            [f"--model_args {name}: unknown.{nearest(name, KNOWN)}" for name in unknown]
        )
    wrong = [text for _, text in problems({"api_key_env": api_key_env}, os.environ)]
    if wrong:
        raise PlanError([f"--model_args api_key_env: {text}" for text in wrong])
