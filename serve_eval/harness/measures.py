"""Apply the filters, metrics and aggregations of lm-eval to answers, real or made up."""

from __future__ import annotations

import math
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.harness import seeds
from serve_eval.harness.library import quiet
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.processes.forkserver import alarms_kept
from serve_eval.schema import Response, Sample, SourceFile

DOCUMENT = "document"
"""The key of the document's number in a sample's metadata."""
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
"""Metrics known to be between 0 and 1 for every document."""
BRIEF = 300
"""Most characters of an exception's message that are shown."""
NOTHING_FOUND = "[invalid]"
"""The output of lm-eval's filters if nothing matches, unless a task sets another."""


@freeze
class Measure:
    """A metric of a task: `aggregate` computes its value over documents, and `how` names it."""

    name: str
    how: str
    aggregate: Callable[[Sequence[Any]], Any]
    higher_is_better: bool

    @property
    def is_mean(self) -> bool:
        return self.how == "mean"


@dataclass(slots=True, kw_only=True)
class Documents:
    """A loaded task of lm-eval, its requests by document, and the items of each sample.

    An aggregation may need more than a number for each document. `shared` is the field of the
    documents with a long text that several of them share, such as a passage.
    """

    task: Any
    instances: Mapping[str, Sequence[Any]]
    sources: tuple[SourceFile, ...] = ()
    shared: str | None = None
    items: dict[str, Mapping[Key, Any]] = field(default_factory=dict)


def measures_of(config: Mapping[str, Any]) -> list[Measure]:
    """Return the metrics of a task in its order, with lm-eval's defaults.

    Raises PlanError for a metric without an aggregation.
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
            raise PlanError(f"lm-eval knows no aggregation of the metric {name}")
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
    """Return the results as in lm-eval, one for each request of a document.

    For a whole text, the result is a number.
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
    """Return a document's figures by metric and filter, and the filtered answers by filter.

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
    """Return the value over documents. Raises ServeEvalError if lm-eval's function fails."""
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
    """Suppress warnings that our users cannot act on, and restore SIGALRM."""
    with quiet(), warnings.catch_warnings(action="ignore"), alarms_kept():
        yield


def brief(error: BaseException) -> str:
    """Return an exception's message in one short line, without the frames that some draw."""
    lines = (" ".join(line.split()) for line in str(error).splitlines())
    said = " ".join(line for line in lines if any(map(str.isalnum, line)))
    return said if len(said) <= BRIEF else f"{said[:BRIEF]}..."


def number(item: Any) -> float | None:
    """Return a document's figure as a number; None if it is not a finite one."""
    try:
        value = float(item)
    except (TypeError, ValueError):
        return None
    return value if math.isfinite(value) else None


def name_figure(key: Key) -> str:
    """Return the name of a figure in lm-eval's own results."""
    return ",".join(key)


def mean_of(name: str) -> Measure:
    """Return the measure that lm-eval assumes for a figure that a task's files do not describe."""
    return Measure(
        name=name,
        how="mean",
        aggregate=lambda items: sum(items) / len(items),
        higher_is_better=True,
    )


WRONG = "I do not know."


def try_scoring(
    here: Documents,
    sample: Sample,
    measure: Measure,
    key: Key,
    elsewhere: Callable[[], Unfinished | None],
) -> None:
    """Score a made-up answer, so that a missing package is found before anything is sent.

    A run prepares its tasks in a thread, where code that sets an alarm fails. `elsewhere` then
    tries the main thread of another process, and returns the problem there (None: there is none).
    Raises ServeEvalError.
    """
    _check_metrics(here.task)
    try:
        items, _ = measure_document(here, sample.metadata[DOCUMENT], _make_up(sample, here, 0))
        if key in items:
            aggregate(measure, [items[key]] * 2)
    except ServeEvalError:
        if threading.current_thread() is threading.main_thread():
            raise
        if (problem := elsewhere()) is not None:
            raise ServeEvalError(problem.told, hint=problem.hint) from None
        return
    if key not in items:
        name = here.task.config.task
        raise PlanError(
            f"lm_eval:{name}: the task has no {name_figure(key)}", hint=choose(name, items)
        )


def _check_metrics(task: Any) -> None:
    """Raise PlanError for a metric that lm-eval cannot find, since lm-eval only logs it."""
    if task.OUTPUT_TYPE != "generate_until" or task.config.process_results is not None:
        return
    lacking = [name for name, function in task._metric_fn_list.items() if function is None]
    if lacking:
        raise PlanError(
            f"lm_eval:{task.config.task}: {', '.join(lacking)}: not a metric of lm-eval,"
            " and not found in Hugging Face's package evaluate",
            hint=(
                "evaluate loads its metrics from the hub, and some need packages of their own. Try"
                f" it with python -c \"import evaluate; evaluate.load('{lacking[0]}')\"."
            ),
        )


def choose(name: str, items: Iterable[Key]) -> str:
    """Return a hint with the figures that a task has."""
    return (
        f"--set lm_eval:{name}.metric=... or .filter=...: it has"
        f" {'; '.join(name_figure(key) for key in items)}."
    )


def _make_up(sample: Sample, here: Documents, right: int) -> list[Any]:
    """Return results in which one choice is far likelier than the others."""
    if sample.choices and len(here.instances[sample.metadata[DOCUMENT]][0].args) > 1:
        return [(-0.001 if i == right else -1000.0, i == right) for i in range(len(sample.choices))]
    if here.task.OUTPUT_TYPE == "loglikelihood_rolling":
        return [-1.0]
    return [sample.target]


def answers_of(here: Documents, sample: Sample, key: Key) -> tuple[str, str]:
    """Return a right and a wrong answer, as `Task.answers` does.

    A task's own metrics may judge them differently.
    """
    with seeds.of_document(sample.metadata[DOCUMENT]):
        return _answers_of(here, sample, key)


def _answers_of(here: Documents, sample: Sample, key: Key) -> tuple[str, str]:
    task, instances = here.task, here.instances[sample.metadata[DOCUMENT]]
    if task.OUTPUT_TYPE == "generate_until":
        return _gold_text(task, instances[0].doc), WRONG
    if not sample.choices:
        return "-0.5", "-3"
    start = len(str(sample.prompt))
    said = [context[start:] + choice for context, choice in sample.continued]
    right = _gold_place(task, instances[0].doc, sample.choices)
    if right is None:
        values = [_make_up_value(here, sample, key, i) for i in range(len(said))]
        right = values.index(max(values))
    return said[right], said[not right] if len(said) > 1 else ""


def _gold_place(task: Any, doc: Mapping[str, Any], choices: Sequence[str]) -> int | None:
    """Return the index of the right choice; None if the document alone does not show it."""
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    gold = gold[0] if isinstance(gold, list) and gold else gold
    if isinstance(gold, str):
        stripped = [choice.strip() for choice in choices]
        return stripped.index(gold.strip()) if gold.strip() in stripped else None
    return gold if isinstance(gold, int) and 0 <= gold < len(choices) else None


def _make_up_value(here: Documents, sample: Sample, key: Key, right: int) -> float:
    items, _ = measure_document(here, sample.metadata[DOCUMENT], _make_up(sample, here, right))
    return number(items.get(key)) or 0.0


def _gold_text(task: Any, doc: Mapping[str, Any]) -> str:
    gold = task.doc_to_target(doc)
    if isinstance(gold, int) and task.config.doc_to_choice is not None:
        gold = task.doc_to_choice(doc)[gold]
    return str(gold[0] if isinstance(gold, list) and gold else gold)
