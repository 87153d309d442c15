"""Make up answers, to test whether a task can be scored and for the simulated endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.harness import seeds
from serve_eval.harness.measures import (
    DOCUMENT,
    Documents,
    Key,
    Measure,
    aggregate,
    measure_document,
    name_figure,
    number,
)
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import Sample

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
