"""Load the settings and the documents of an lm-eval task, and make samples of them."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Any

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.frozen import freeze
from serve_eval.harness import library, seeds
from serve_eval.harness.instances import (
    Prefix,
    as_text,
    build_generated,
    build_judged,
    build_rolled,
    read_sampling,
)
from serve_eval.harness.library import with_local_files
from serve_eval.harness.measures import DOCUMENT, Documents, Measure, measures_of
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import open_scope
from serve_eval.schema import DataRoots, Sample, SamplingParams
from serve_eval.tasks._samples import find_document_field, name_document


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


_KEPT = "documents of a task of lm-eval"
"""First part of the key under which a scope keeps documents. Tasks that differ only in scoring
share them."""
_DECIDING = {
    "data_files": None,
    "num_fewshot": None,
    "fewshot_as_multiturn": False,
    "prefix": "",
}
"""The options that decide what is loaded, with their defaults."""


@freeze
class TaskSource:
    """A task of lm-eval with the options that decide what is loaded.

    All of these options are in `key`, the prefix last. `own` are the folders of the user's tasks.
    `shots` is the number of worked examples. `kept` is the storage of the scope in which it was
    made: its answers are scored there, in any scope or thread.
    """

    name: str
    own: tuple[str, ...]
    config: Mapping[str, Any]
    settled: Any
    data_files: dict[str, str] | None
    shots: int
    multiturn: bool
    prefix: Prefix
    key: tuple[object, ...]
    kept: dict[tuple[object, ...], Any] = field(
        default_factory=lambda: open_scope().kept, repr=False, compare=False
    )

    def documents(self) -> Documents:
        """Return what was loaded in its scope. Raises KeyError before the first `load`."""
        found: Documents = self.kept[self.key]
        return found

    def load(self, roots: DataRoots) -> Documents:
        """Load the task, unless its scope already has it from the same files.

        lm-eval builds the same documents for any prefix.
        """
        places, sources = with_local_files(self.name, self.config, self.data_files, roots, self.own)
        if self.key not in self.kept and (alike := self._but_for_the_prefix()) is not None:
            self.kept[self.key] = replace(alike, items={})
        if self.key not in self.kept or self.kept[self.key].sources != sources:
            with seeds.as_in_a_run():
                settings = {
                    **library.read(self.name, self.own),
                    **places,
                    "num_fewshot": self.shots,
                }
                found = library.load(self.name, settings, online=roots.allow_hub)
                instances = library.build(found, multiturn=self.multiturn, as_text=as_text)
            by_document: dict[str, list[Any]] = {}
            for instance in instances:
                by_document.setdefault(str(instance.doc_id), []).append(instance)
            rows = [one[0].doc for one in by_document.values() if isinstance(one[0].doc, Mapping)]
            self.kept[self.key] = Documents(
                task=found,
                instances=by_document,
                sources=sources,
                shared=find_document_field(rows),
            )
        return self.documents()

    def _but_for_the_prefix(self) -> Documents | None:
        """Return documents that were loaded under another prefix, or None."""
        return next((one for known, one in self.kept.items() if known[:-1] == self.key[:-1]), None)


def source_of(name: str, options: Mapping[str, Any]) -> TaskSource:
    """Return a task of this name.

    `options` are those of a plan; those that do not decide what is loaded are ignored.
    """
    own = extensions.lm_eval_folders()
    config = library.config(name, own)
    settled = library.settle_config(config)
    given = {option: options.get(option, usual) for option, usual in _DECIDING.items()}
    shots = (settled.num_fewshot or 0) if given["num_fewshot"] is None else given["num_fewshot"]
    multiturn, prefix = given["fewshot_as_multiturn"], given["prefix"] or ""
    return TaskSource(
        name=name,
        own=own,
        config=config,
        settled=settled,
        data_files=given["data_files"],
        shots=shots,
        multiturn=multiturn,
        prefix=prefix,
        key=(_KEPT, name, shots, json.dumps(given["data_files"]), multiturn, own, prefix),
    )


def load_parts(name: str, options: Mapping[str, Any]) -> tuple[Documents, Mapping[str, Measure]]:
    """Return what was loaded of a task in this scope, and its metrics.

    The task is given by its name and the options of a plan.
    """
    source = source_of(name, options)
    return source.documents(), measures_of_task(name, source.config)


def sample_of(
    here: Documents, kind: str, doc: str, base: Any, multiturn: bool, prefix: Prefix
) -> Sample:
    """Return the sample of a document, made of all requests that lm-eval builds for it."""
    instances = here.instances[doc]
    row = instances[0].doc
    text = row.get(here.shared) if isinstance(row, Mapping) else None
    with seeds.of_document(doc):
        target = _target(here.task, instances[0].doc)
    about = {
        "id": doc,
        "target": target,
        "metadata": {DOCUMENT: doc},
        "group": name_document(text) if isinstance(text, str) else "",
    }
    try:
        if kind == "generate_until":
            return build_generated(instances, base, multiturn=multiturn, **about)
        return (build_rolled if kind == "loglikelihood_rolling" else build_judged)(
            instances, prefix, **about
        )
    except ServeEvalError as error:
        raise type(error)(
            f"lm_eval:{here.task.config.task}: document {doc}: {error}", hint=error.hint
        ) from error


def _target(task: Any, doc: Mapping[str, Any]) -> str:
    """Return the expected answer, or the number of the right choice if the choices are contexts."""
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    return gold if isinstance(gold, str) else json.dumps(gold, default=str)
