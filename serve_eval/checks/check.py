"""Describe a check: one capability of an endpoint, and the most that testing it costs."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from serve_eval.checks.row import CheckResult
from serve_eval.checks.session import CheckSession


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """A check that an endpoint has one capability.

    `run` sends at most `requests` requests that generate at most `tokens` tokens in total; their
    prompts have about `prompt_tokens` tokens. `full`: only at --level full. `model`: it tests the
    model, not only its server.

    `run` may raise NotAnswered, whose answer then becomes the row.
    """

    name: str
    run: Callable[[CheckSession], Awaitable[CheckResult]]
    requests: int
    tokens: int = 0
    prompt_tokens: int = 0
    full: bool = False
    model: bool = False
