"""Check the arguments of the model, which lm-eval takes as --model_args."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from serve_eval.client.connection import problems
from serve_eval.errors import PlanError
from serve_eval.plugins.registry import nearest
from serve_eval.schema import ServerDefaults

KNOWN = (
    "base_url",
    "model",
    "concurrency",
    "max_gen_toks",
    "prefix",
    "tokenizer",
    "server_defaults",
    "api_key_env",
    "max_attempts",
    *("ca_bundle", "client_cert", "client_key", "client_key_password_env"),
)
_OF_LM_EVAL = frozenset({"batch_size", "max_batch_size", "device", "pretrained"})
"""Arguments that lm-eval passes to every model and that a client ignores."""


def check_arguments(others: Iterable[str], connection: Mapping[str, str]) -> None:
    """Raise PlanError for an unknown argument, and for variables that hold no usable secrets."""
    unknown = [name for name in others if name not in _OF_LM_EVAL]
    if unknown:
        raise PlanError(
            [f"--model_args {name}: unknown.{nearest(name, KNOWN)}" for name in unknown]
        )
    wrong = list(problems(connection, os.environ))
    if wrong:
        raise PlanError([f"--model_args {'.'.join(path)}: {text}" for path, text in wrong])


def check_policy(given: str) -> ServerDefaults:
    """Return the policy for what a server adds to requests. Raises PlanError for another word."""
    policies: tuple[ServerDefaults, ...] = ("neutral", "keep")
    for policy in policies:
        if given == policy:
            return policy
    raise PlanError(f"--model_args server_defaults: must be neutral or keep, not {given!r}")
