"""Describe one task for `serve-eval data list tasks NAME`: its data, protocol and references."""

from __future__ import annotations

import importlib
import inspect
import json
from collections.abc import Iterable, Mapping

from serve_eval.cli._described import describe_origin, list_options, wrap
from serve_eval.datasets.local import find_sources
from serve_eval.datasets.source import Source
from serve_eval.plugins import extensions, registry
from serve_eval.protocol.shared import OPTIONS, TASKS, find_usual_repeats, usual_task
from serve_eval.schema import Need, Spec, Task
from serve_eval.verdicts.references import find_shipped_dir, load

COLUMN = 12
"""Columns before the text of a fact."""


def describe_task(name: str) -> list[str]:
    """Return the lines that describe a task.

    They hold what it asks and how it scores, its data, protocol and references, and its options.
    Raises PlanError for a task that cannot be used.
    """
    make = registry.function(TASKS, name)
    member = registry.family_of(TASKS, make)
    lines = [*describe_origin(TASKS, name), ""]
    for paragraph in _read_docstring(name).split("\n\n")[1:]:
        lines += [*wrap(" ".join(paragraph.split()), "  ", "  "), ""]
    if member is None:
        lines += _list_facts(usual_task(Spec(name=name)))
        place = name
    else:
        place = f"{name}:{member.upper()}"
        lines += _format_fact(
            "tasks", f"one for each {member.upper()}", f"serve-eval run --tasks {place}"
        )
    lines += ["", "Options:", *list_options(make, {})]
    shared = sorted(OPTIONS.keys() - registry.options_of(make).keys())
    lines += ["", *wrap(f"And those of every task (docs/protocols.md): {', '.join(shared)}.")]
    return [*lines, "", *wrap(f"Set them with --set {place}.OPTION=VALUE, or in a plan.")]


def _read_docstring(name: str) -> str:
    """Return the docstring of the task's file, or of a function outside of serve-eval."""
    others = extensions.find(TASKS, name)
    offered = others[0].get() if others else importlib.import_module(f"{TASKS}.{name}")
    return inspect.getdoc(offered) or ""


def _list_facts(task: Task) -> list[str]:
    """Return the facts that the task itself states, with the defaults of its options."""
    count, metric, how = task.hypothesis.num_samples, task.metric, task.aggregation.name
    asked = "as many samples as the data has" if count is None else f"{count} samples"
    tokens = f"at most {task.sampling.max_tokens} tokens each"
    answers = "no answer, only log-probabilities" if task.prompt_logprobs else tokens
    better = "higher" if metric.higher_is_better else "lower"
    chosen = ", ".join(f"{name} {_format_value(value)}" for name, value in task.protocol.items())
    return [
        *_list_data(task),
        *_format_fact("asks", f"{asked}; {answers}"),
        *_format_fact("needs", f"an endpoint with {', '.join(_list_needs(task))}"),
        *_format_fact("value", f"{metric.name}: {how} of the samples, {better} is better"),
        *_tell_repeats(task),
        *_count_references(task),
        *_format_fact("protocol", f"version {task.version}: {chosen}"),
    ]


def _tell_repeats(task: Task) -> list[str]:
    """Return how often prompts are asked where models are usually compared by a task."""
    usual = find_usual_repeats(task.name)
    if usual is None:
        return []
    return _format_fact("repeats", f"1; usually avg@{usual}, which --repeats usual asks")


def _list_data(task: Task) -> list[str]:
    """Return the data sets of a task, and the commands that fetch them."""
    if not task.datasets:
        return _format_fact("data", "no data set to fetch")
    known = find_sources()
    return [
        line
        for name in task.datasets
        for line in (
            _format_fact(
                "data", f"{known[name].name}: {known[name].rows}", _say_source(name, known)
            )
            if name in known
            else _format_fact("data", name)
        )
    ]


def _say_source(name: str, known: Mapping[str, Source]) -> str:
    """Return the command that fetches a data set, or where to get it by hand."""
    source = known[name]
    if source.urls or source.hub:
        return f"serve-eval data fetch {name}"
    return f"by hand, from {source.homepage}"


def _list_needs(task: Task) -> Iterable[str]:
    """Return what the endpoint must be able to do."""
    plain = Need.PROMPT_LOGPROBS if task.prompt_logprobs else Need.COMPLETIONS
    return sorted({Need.CHAT if task.chat else plain, *task.requires})


def _count_references(task: Task) -> list[str]:
    """Return the number of models with a registered accuracy, and the command that shows them.

    A control needs none.
    """
    if task.control_of is not None:
        return _format_fact("references", f"none needed: compared with {task.control_of}")
    file = find_shipped_dir() / f"{task.reference_file}.yaml"
    if not file.is_file():
        take = f"serve-eval references take host:8000 -t {task.name}"
        return _format_fact("references", "none registered", take)
    count = len(load(file))
    models = f"{count} model{'s' if count > 1 else ''}"
    return _format_fact("references", models, f"serve-eval references show {task.reference_file}")


def _format_value(value: object) -> str:
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else json.dumps(value, default=str)


def _format_fact(name: str, text: str, command: str = "") -> list[str]:
    """Return a fact in two columns, with a command on a line of its own."""
    margin = " " * (COLUMN + 2)
    return wrap(text, f"  {name:{COLUMN}}", margin) + ([f"{margin}{command}"] if command else [])
