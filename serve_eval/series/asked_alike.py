"""Decide which tasks of runs share a column: those that were asked alike, seeds and repeats apart.

Pure.
"""

from __future__ import annotations

import msgspec

from serve_eval.protocol.fingerprint import SCORER_OPTIONS, without_scorer_options
from serve_eval.schema import Stability, TaskReport
from serve_eval.series.deployments import SEED
from serve_eval.verdicts.references.deployed import write_value

Key = tuple[str, str]
"""A task with all that decides what its value means, as JSON."""


def key_of_column(task: TaskReport) -> Key:
    """Return a task with all that decides what its value means; a sampling seed is a repeat."""
    result, asked = task.result, without_scorer_options(task.fingerprint)
    asked.pop(SEED, None)
    content = (
        asked,
        task.version,
        count_prompts(task),
        result.metric,
        result.aggregation,
        sorted(judge.name for judge in task.judges),
    )
    return result.task, msgspec.json.encode(content, order="sorted").decode()


def describe_scorer_options(task: TaskReport) -> str:
    """Return the options of the scorers that are not the defaults; "" for none."""
    stored = task.fingerprint.get(SCORER_OPTIONS)
    return "" if stored is None else f"scorer {_flatten(msgspec.json.decode(stored))}"


def _flatten(options: object, above: str = "") -> str:
    """Return nested options on one line: "numeric.absolute 10"."""
    if isinstance(options, dict) and options:
        inside = (_flatten(value, f"{above}.{name}") for name, value in options.items())
        return ", ".join(inside)
    return f"{above.removeprefix('.')} {write_value(options)}"


def count_repeats(task: TaskReport) -> int:
    """Return how often each prompt was asked."""
    result = task.result
    if result.stability is not None:
        return result.stability.repeats
    prompts = task.fingerprint.get("samples", "").partition(" ")[0]
    if not prompts.isdecimal() or int(prompts) == 0 or result.planned % int(prompts):
        return 1
    return max(1, result.planned // int(prompts))


def find_pass_at_all(told: Stability) -> float | None:
    """Return pass@k with k the number of repeats, in percent; None if scores are graded."""
    return next((v for k, v in told.pass_at.items() if int(k) == told.repeats), None)


def count_prompts(task: TaskReport) -> int:
    """Return the number of prompts, each of which may be asked several times."""
    return task.result.planned // count_repeats(task)
