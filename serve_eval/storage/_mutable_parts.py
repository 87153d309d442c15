"""Remove from stored plans the parts of user cases that may change between sessions."""

from __future__ import annotations

from typing import Any

from serve_eval.plugins import registry
from serve_eval.schema import is_mutable


def drop_mutable_parts(*stored: dict[str, Any]) -> None:
    """Remove from two stored plans the parts of user cases that may change.

    These are the cases, their files and their scoring. Options for all cases, such as a
    temperature, stay, since the ids do not reflect them.
    """
    both = set.intersection(*({task["name"] for task in one["plan"]["tasks"]} for one in stored))
    for one in stored:
        one["fingerprints"] = {
            name: found for name, found in one["fingerprints"].items() if not is_mutable(name)
        }
        one["plan"]["tasks"] = [
            _drop_own_options(task) for task in one["plan"]["tasks"] if _stays(task["name"], both)
        ]


def _stays(task: str, both: set[str]) -> bool:
    return task in both or not is_mutable(task)


def _drop_own_options(task: dict[str, Any]) -> dict[str, Any]:
    """Return a stored task. Options that select its cases are removed if the task is mutable."""
    if not is_mutable(task["name"]):
        return task
    own = registry.options_of(registry.load("serve_eval.tasks", task["name"]))
    return {
        "name": task["name"],
        "options": {k: v for k, v in task["options"].items() if k not in own},
    }
