"""Load the documents of an lm-eval task once per scope and options, and make samples of them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from serve_eval.errors import ServeEvalError
from serve_eval.harness import library, seeds
from serve_eval.harness.data import with_local_files
from serve_eval.harness.instances import (
    Prefix,
    as_text,
    build_generated,
    build_judged,
    build_rolled,
)
from serve_eval.harness.measures import DOCUMENT, Documents, Measure
from serve_eval.plugins import extensions
from serve_eval.plugins.scope import open_scope
from serve_eval.schema import DataRoots, Sample
from serve_eval.tasks._documents import find_document_field, name_document
from serve_eval.tasks._lm_eval.settings import measures_of_task

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


@dataclass(frozen=True, slots=True, kw_only=True)
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
