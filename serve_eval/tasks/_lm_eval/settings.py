"""Read the files of an lm-eval task and check them against the options of a plan."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from typing import Any

from serve_eval.errors import PlanError
from serve_eval.harness import library
from serve_eval.harness.instances import read_sampling
from serve_eval.harness.measures import Measure, measures_of
from serve_eval.schema import SamplingParams


def check_options(
    name: str, config: Mapping[str, Any], settled: Any, num_fewshot: int | None, multiturn: bool
) -> None:
    """Raise PlanError for a task that cannot be asked, or not with these options."""
    problems = []
    if settled.output_type not in library.KINDS:
        raise PlanError(
            f"lm_eval:{name}: output_type {settled.output_type!r} is not one of"
            f" {', '.join(library.KINDS)}"
        )
    if not isinstance(settled.metadata or {}, Mapping):
        raise PlanError(f"lm_eval:{name}: metadata must be a mapping, such as {{version: 1}}")
    if settled.repeats > 1:
        problems.append(f"each document needs {settled.repeats} answers")
    if settled.doc_to_image or settled.doc_to_audio:
        problems.append("it uses images or sound")
    if problems:
        raise PlanError(
            [f"lm_eval:{name}: {problem}" for problem in problems],
            hint=library.OTHER_WAY.format(name),
        )
    if num_fewshot is not None and num_fewshot != 0 == config.get("num_fewshot"):
        raise PlanError(
            f"lm_eval:{name}: num_fewshot: the task sets 0, which lm-eval never overrides"
        )
    if num_fewshot is not None and num_fewshot < 0:
        raise PlanError(f"lm_eval:{name}: num_fewshot must be 0 or more")
    if multiturn and settled.output_type != "generate_until":
        raise PlanError(
            f"lm_eval:{name}: fewshot_as_multiturn: log-probabilities need a plain text"
        )


def read_task_sampling(
    name: str, given: Mapping[str, Any]
) -> tuple[SamplingParams, dict[str, Any]]:
    """Return the sampling of answers, and additional fields.

    Raises PlanError for settings that the client cannot send.
    """
    try:
        return read_sampling(given)
    except (TypeError, ValueError) as error:
        raise PlanError(f"lm_eval:{name}: generation_kwargs: {error}") from error


def measures_of_task(name: str, config: Mapping[str, Any]) -> dict[str, Measure]:
    """Return the metrics of a task by name, in its order.

    Raises PlanError for a metric without an aggregation.
    """
    try:
        return {one.name: one for one in measures_of(config)}
    except PlanError as error:
        raise PlanError(f"lm_eval:{name}: {error}") from error


def needs_likeliest(kind: str, config: Mapping[str, Any], measures: Mapping[str, Measure]) -> bool:
    """Return True if a metric needs to know what greedy decoding would have written."""
    if kind == "loglikelihood":
        return "acc" in measures or config.get("process_results") is not None
    return kind == "multiple_choice" and "exact_match" in measures


def config_hash(settled: Any) -> str:
    """Return a hash of a task's files, without the location of its data and the shots.

    The samples identify the data better.
    """
    every = settled.to_dict(keep_callable=True)
    told = {n: v for n, v in every.items() if not n.startswith("dataset_") and n != "num_fewshot"}
    text = json.dumps(told, sort_keys=True, default=_of_code)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _of_code(value: Any) -> Any:
    """Return a stable text for a function: its source and bound arguments, never its address."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    try:
        return inspect.getsource(value)
    except (TypeError, OSError):
        return getattr(value, "__qualname__", type(value).__name__)
