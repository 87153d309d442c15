"""What lm-eval makes of an answer: its filters, its metrics per document, and its aggregations."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.harness import seeds
from serve_eval.harness.library import quiet
from serve_eval.processes.forkserver import alarms_kept
from serve_eval.schema import Response, SourceFile

DOCUMENT = "document"
"""Under which a sample's metadata has the number of its document."""
Key = tuple[str, str]
"""The names of a metric and of the filter before it."""
IN_PERCENT = frozenset(
    {
        "acc",
        "acc_norm",
        "acc_bytes",
        "acc_mutual_info",
        "exact_match",
        "em",
        "prompt_level_strict_acc",
    }
    | {"prompt_level_loose_acc"}
)
"""Metrics that are known to lie between 0 and 1 for every document."""
BRIEF = 300
"""Characters of an exception's message that are shown."""
NOTHING_FOUND = "[invalid]"
"""What lm-eval's filters give where nothing matches, unless a task says otherwise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measure:
    """A metric of a task: `aggregate` makes the value of what the documents gave, `how` is its
    name.
    """

    name: str
    how: str
    aggregate: Callable[[Sequence[Any]], Any]
    higher_is_better: bool

    @property
    def is_mean(self) -> bool:
        return self.how == "mean"


@dataclass(slots=True, kw_only=True)
class Documents:
    """A loaded task: lm-eval's own, its requests by document, and what each of our samples gave: an
    aggregation needs more of a document than a number.
    """

    task: Any
    instances: Mapping[str, Sequence[Any]]
    sources: tuple[SourceFile, ...] = ()
    items: dict[str, Mapping[Key, Any]] = field(default_factory=dict)


def measures_of(config: Mapping[str, Any]) -> list[Measure]:
    """The metrics of a task in its order, with lm-eval's defaults. Raises PlanError for one without
    an aggregation.
    """
    with quiet():
        return _measures_of(config)


def _measures_of(config: Mapping[str, Any]) -> list[Measure]:
    from lm_eval.api import registry

    kind = config.get("output_type", "generate_until")
    listed = config.get("metric_list") or [
        {"metric": name} for name in registry.DEFAULT_METRIC_REGISTRY[kind]
    ]
    found = []
    for one in listed:
        name = one["metric"] if isinstance(one["metric"], str) else one["metric"].__name__
        how = one.get("aggregation") or registry.get_metric_aggregation(name)
        aggregate = registry.get_aggregation(how) if isinstance(how, str) else how
        if aggregate is None:
            raise PlanError(f"the metric {name} has no aggregation that lm-eval knows")
        better = one.get("higher_is_better", registry.is_higher_better(name))
        called = how if isinstance(how, str) else getattr(how, "__name__", "function of the task")
        found.append(
            Measure(
                name=name,
                how=called,
                aggregate=aggregate,
                higher_is_better=better is None or bool(better),
            )
        )
    return found


def list_results(documents: Documents, response: Response) -> list[Any]:
    """Return the results that lm-eval would have, one for each request of a document: a number for
    a whole text.
    """
    if response.choice_logprobs is not None:
        if documents.task.OUTPUT_TYPE == "loglikelihood_rolling":
            return list(map(math.fsum, response.choice_logprobs))
        greedy = response.choice_greedy or (None,) * len(response.choice_logprobs)
        return list(zip(map(math.fsum, response.choice_logprobs), greedy, strict=True))
    if response.prompt_logprobs is not None:
        return [math.fsum(response.prompt_logprobs.values)]
    return [response.text]


def measure_document(
    documents: Documents, doc: str, results: Sequence[Any]
) -> tuple[dict[Key, Any], dict[str, list[Any]]]:
    """Return a document's figures by metric and filter, and what the filters left of each answer.

    Raises ServeEvalError. Its message does not name the document, so that a report can count equal
    errors.
    """
    task, instances = documents.task, documents.instances[doc]
    found: dict[Key, Any] = {}
    filtered: dict[str, list[Any]] = {}
    try:
        with as_others_code(), seeds.of_document(doc):
            for instance, result in zip(instances, results, strict=True):
                instance.resps, instance.filtered_resps = [result], {}
            for one in task._filters:
                one.apply(instances)
            for name in instances[0].filtered_resps:
                filtered[name] = [instance.filtered_resps[name] for instance in instances]
                for metric, item in task.process_results(instances[0].doc, filtered[name]).items():
                    found[metric, name] = item
    except (Exception, SystemExit) as error:  # a task may import and compute anything
        raise ServeEvalError(
            f"lm_eval:{task.config.task}: lm-eval cannot score an answer: {type(error).__name__}:"
            f" {brief(error)}",
            hint=(
                "Some metrics need packages or data of their own: see the task's README in lm-eval."
            ),
        ) from error
    return found, filtered


def aggregate(measure: Measure, items: Sequence[Any]) -> float:
    """The value of some documents. Raises ServeEvalError where lm-eval's function does."""
    try:
        with as_others_code(), seeds.of_document(measure.name):
            return float(measure.aggregate(items))
    except Exception as error:
        raise ServeEvalError(
            f"lm_eval: the {measure.how} of {measure.name} cannot be computed:"
            f" {type(error).__name__}: {brief(error)}",
            hint=(
                "Some metrics need packages or data of their own: see the task's README in lm-eval."
            ),
        ) from error


@contextmanager
def as_others_code() -> Iterator[None]:
    """Suppress warnings that users of ours cannot act on, and restore SIGALRM."""
    with quiet(), warnings.catch_warnings(action="ignore"), alarms_kept():
        yield


def brief(error: BaseException) -> str:
    """Return an exception's message in one line of bounded length, without the frames that some
    draw around it.
    """
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    said = " ".join(line for line in lines if any(map(str.isalnum, line)))
    return said if len(said) <= BRIEF else f"{said[:BRIEF]}..."


def number(item: Any) -> float | None:
    """What a document gave, as a number; None where it is none."""
    try:
        value = float(item)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def name_figure(key: Key) -> str:
    """The name under which lm-eval's own results have a figure."""
    return ",".join(key)


def mean_of(name: str) -> Measure:
    """What lm-eval takes for a figure of which a task's files do not speak."""
    return Measure(
        name=name,
        how="mean",
        aggregate=lambda items: sum(items) / len(items),
        higher_is_better=True,
    )
