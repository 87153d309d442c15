"""Make the protocol of an imported reference: what its files hold, in the fields of our task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serve_eval.errors import ReferenceFileError
from serve_eval.plan.applicable_reference import list_unrecorded
from serve_eval.plugins import registry
from serve_eval.protocol.shared import OPTIONS, TASKS, build_task
from serve_eval.schema import Spec, Task
from serve_eval.workflows.references.imports.found import FoundResult
from serve_eval.workflows.references.imports.names import LM_EVAL, STRICT, NamedTask

PROMPTS = "prompts"
"""Field of a protocol that names prompts which are not ours. No task has it, so that a run is
refused unless it allows the mismatch."""
SAMPLING = ("max_tokens", "temperature", "top_p", "seed", "stop", "extra_body")
"""Fields that do not follow from equal prompts."""
_SCORING = ("filter", "metric", "scoring")
_VERSIONS = ("lm_eval", "config", "task_version")
_UNSEEN = ("prefix", "truncate_prompt_tokens", "thinking")
"""Further fields that prompts do not show."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportedTask:
    """Our task under the protocol of an imported result.

    `source` is the tool. `scores` are the tool's scores whose mean is the value. `told` are the
    fields of the protocol that the files hold.
    """

    spec: Spec
    task: Task
    source: str
    scores: tuple[str, ...]
    told: Mapping[str, Any]

    def complete(self) -> dict[str, Any]:
        """Return the fields with those that follow from equal prompts."""
        own = {**self.task.protocol, **self.task.reference_fields}
        hidden = (*SAMPLING, *_SCORING, *_VERSIONS, *_UNSEEN)
        follow = {name: value for name, value in own.items() if name not in hidden}
        # Equal prompts show more than the versions of what made them.
        told = {name: value for name, value in self.told.items() if name not in _VERSIONS}
        return {**told, **follow}

    def list_unknown(self, protocol: Mapping[str, Any]) -> list[str]:
        """Return the fields of the task that a protocol lacks and that may decide a value."""
        own = {**self.task.protocol, **self.task.reference_fields}
        return list_unrecorded(own, protocol, self.source)


def build_imported(result: FoundResult, known: NamedTask) -> ImportedTask:
    """Return our task with all options that a result tells.

    Raises PlanError for options that exclude each other, or a task that is not there, and
    ReferenceFileError for a result without the score that the task needs.
    """
    scores, chosen = _choose_scores(result, known)
    own = registry.options_of(registry.load(TASKS, known.name))
    told = {**_drop_idle(result.told), **known.options, **chosen}
    options = {
        name: value
        for name, value in told.items()
        if value is not None and (name in own or name in OPTIONS)
    }
    spec = Spec(name=known.name, options=options)
    task = build_task(spec, known.name)
    if known.name.startswith(LM_EVAL):
        metric = str(task.protocol["metric"])
        scores, told = _check_scores(result, (metric,)), {**told, "metric": metric}
    held = {
        name: task.protocol[name] if name in options else value
        for name, value in told.items()
        if name in task.protocol
    }
    return ImportedTask(spec=spec, task=task, source=result.tool, scores=scores, told=held)


def _choose_scores(result: FoundResult, known: NamedTask) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the scores whose mean is the value, and the option that it implies."""
    if known.name.startswith(LM_EVAL):
        return (), {}
    if not known.scores:
        return (next(iter(result.scores)),), {}
    there = tuple(name for name in known.scores if name in result.scores)
    if STRICT not in known.scores:
        return _check_scores(result, known.scores), {}
    if not there:
        _check_scores(result, known.scores)
    return there, {"filter": "mean" if len(there) > 1 else there[0].split(",")[1]}


def _check_scores(
    result: FoundResult, wanted: tuple[str, ...] | list[str] | Any
) -> tuple[str, ...]:
    if lacking := [name for name in wanted if name not in result.scores]:
        raise ReferenceFileError(
            f"{result.file}: {result.task} has no {', '.join(lacking)}, only"
            f" {', '.join(result.scores)}"
        )
    return tuple(wanted)


def _drop_idle(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol without a sampling seed at temperature 0, where nothing is drawn."""
    idle = told.get("temperature") == 0
    return {name: value for name, value in told.items() if not (idle and name == "seed")}
