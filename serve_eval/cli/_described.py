"""Describe one task, scorer, launcher or verdict rule with all of its options."""

from __future__ import annotations

import inspect
import json
import re
import textwrap
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from serve_eval.datasets.local import find_sources
from serve_eval.datasets.source import Source
from serve_eval.plugins import extensions, registry
from serve_eval.plugins.declarations import Option, options, struct_of
from serve_eval.plugins.values import LAUNCHERS, load_launcher
from serve_eval.protocol.shared import OPTIONS, TASKS, find_usual_repeats, usual_task
from serve_eval.schema import Need, Spec, Task
from serve_eval.verdicts.references import find_shipped_dir, load

WIDTH = 80
WORDS = {int: "whole number", float: "number", str: "text", bool: "true or false"}
PLURAL = re.compile(r"\b(number|text)\b")
SEVERAL = {list: "list", dict: "mapping"}


def describe_plugin(package: str, name: str) -> list[str]:
    """Return the lines that describe a plugin.

    They hold its summary, its origin, and the type, default and meaning of each option. Raises
    PlanError for a plugin that cannot be used.
    """
    function = registry.function(package, name)
    meanings = load_launcher(name).meanings if package == LAUNCHERS else {}
    return [*describe_origin(package, name), *list_options(function, meanings)]


def describe_origin(package: str, name: str) -> list[str]:
    """Return a plugin's name and summary, and its place if it is not part of serve-eval."""
    lines = wrap(f"{name}: {registry.summary(package, name)}", "", "    ")
    return [*lines, *(f"    from {origin.place}" for origin in extensions.find(package, name))]


def list_options(function: Callable[..., Any], meanings: Mapping[str, str]) -> list[str]:
    """Return the lines that describe the options of a function.

    `meanings` holds what the options do not say themselves.
    """
    lines = []
    for option in options(function):
        nested = struct_of(option.hint) is not None
        told = (
            "has its own options, listed below"
            if nested
            else f"{_kind(option.hint)}; {_default(option)}"
        )
        lines += wrap(f"{option.path} ({told})", "  ", "      ")
        if found := option.meaning or meaning(option.path, meanings):
            lines += wrap(found, "      ", "      ")
    return lines


def meaning(path: str, meanings: Mapping[str, str]) -> str:
    """Return the meaning of an option, or "" if it is not documented.

    The meaning of a nested option may also be stored under its bare name.
    """
    below = path
    while below not in meanings and "." in below:
        below = below.partition(".")[2]
    return meanings.get(below, "")


def wrap(text: str, first: str = "", others: str = "") -> list[str]:
    """Return a text as lines of at most WIDTH columns."""
    return textwrap.wrap(
        text,
        WIDTH,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _kind(hint: Any) -> str:
    """Return a type in words."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Literal:
        return " or ".join(map(str, parts))
    if origin in SEVERAL:
        of = [PLURAL.sub(r"\1s", _kind(parts[-1]))] if parts and parts[-1] is not Any else []
        return " of ".join([SEVERAL[origin], *of])
    if parts:
        several = sorted((part for part in parts if part is not type(None)), key=_is_list)
        return " or ".join(dict.fromkeys(map(_kind, several)))
    return WORDS.get(hint) or SEVERAL.get(hint) or str(getattr(hint, "__name__", hint))


def _is_list(hint: Any) -> bool:
    return typing.get_origin(hint) is list


def _default(option: Option) -> str:
    value = option.default
    if option.required:
        return "required"
    if value is None:
        return "not set"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{name}: {one}" for name, one in value.items()) + "}"
            if value
            else "empty"
        )
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(str, value))}]" if value else "empty"
    return str(value) or "empty"


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
    lines += ["", *wrap(f"And those of every task (docs/requests.md): {', '.join(shared)}.")]
    return [*lines, "", *wrap(f"Set them with --set {place}.OPTION=VALUE, or in a plan.")]


def _read_docstring(name: str) -> str:
    """Return the docstring of the task's file, or of a function outside of serve-eval."""
    return inspect.getdoc(registry.find_documented(TASKS, name)) or ""


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
