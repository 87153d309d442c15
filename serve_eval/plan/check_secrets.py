"""Refuse keys in a plan, which is saved and shown."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from serve_eval.plan.parse import Problems
from serve_eval.schema import Spec
from serve_eval.secret_signs import ADVICE, Place, find_secrets, holds_secret

TEXTS = frozenset(
    {"system_prompt", "system_messages", "prompt", "prompts", "prefix", "stop", "template"}
)
"""Options of tasks that are texts of prompts, which may be about passwords."""
NAMES = frozenset({"job_secret", "auth_key"})
"""Options of launchers that sound secret and hold a name or a choice."""


def check_secrets(
    values: Mapping[str, object],
    tasks: Iterable[Spec],
    launcher: Spec,
    verdict: Spec,
    problems: Problems,
) -> None:
    """Add a problem for each place that probably holds a secret, without its value.

    The address of the endpoint and the section `connection` have checks of their own.
    """
    for name, value in values.items():
        if isinstance(value, str) and holds_secret(value) and name != "base_url":
            problems.add((name,), ADVICE)
    for place in _in_options(launcher.options, NAMES | {"base_url"}):
        problems.add(("launcher", *place), ADVICE)
    for place in _in_options(verdict.options, frozenset()):
        problems.add(("verdict", *place), ADVICE)
    for i, task in enumerate(tasks):
        for place in _in_options(task.options, TEXTS):
            problems.add(("tasks", i, task.name, *place), ADVICE)


def _in_options(options: Mapping[str, object], free: frozenset[str]) -> Iterator[Place]:
    yield from find_secrets({name: value for name, value in options.items() if name not in free})
