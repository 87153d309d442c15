"""Map the names that other tools give to tasks and scores to tasks here."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from serve_eval.errors import PlanError, ReferenceFileError
from serve_eval.plugins import registry
from serve_eval.protocol.shared import TASKS
from serve_eval.workflows.references.imports.found import FoundResult
from serve_eval.workflows.references.imports.lm_eval import EXPORTED

LM_EVAL = "lm_eval:"
STRICT, FLEXIBLE = "exact_match,strict-match", "exact_match,flexible-extract"


@dataclass(frozen=True, slots=True, kw_only=True)
class NamedTask:
    """A task here for a task of another tool, with options that the name implies.

    `alike` says that the tool asks as we do; otherwise it is known to word its prompts differently.
    The value is the mean of `scores` (empty: the tool's main one).
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    alike: bool = False
    scores: Sequence[str] = ()


_GPQA = NamedTask(name="gpqa", options={"subset": "diamond"})
_LIKELIHOOD = NamedTask(name="mmlu", options={"scoring": "loglikelihood"}, scores=("acc,none",))
_PASS = NamedTask(name="humaneval", options={"metric": "pass@1"})
_COMMON: Mapping[str, NamedTask] = {
    "gpqa": _GPQA,
    "gpqa_diamond": _GPQA,
    "gpqa_main": NamedTask(name="gpqa", options={"subset": "main"}),
    "gpqa_extended": NamedTask(name="gpqa", options={"subset": "extended"}),
    "humaneval": _PASS,
    "mmlu_0_shot": NamedTask(name="mmlu", options={"num_fewshot": 0}),
    "mmlu_5_shot": NamedTask(name="mmlu", options={"num_fewshot": 5}),
    **{
        written: NamedTask(name="aime", options={"year": year})
        for year in (2024, 2025, 2026)
        for written in (f"aime{year}", f"aime_{year}", f"aime{year % 100}")
    },
    "longbenchv2": NamedTask(name="longbench_v2"),
}
"""Names that several tools use. A name of a task here needs no row."""
_LM_EVAL: Mapping[str, NamedTask] = {
    "gsm8k": NamedTask(name="gsm8k", alike=True, scores=(STRICT, FLEXIBLE)),
    "mmlu": _LIKELIHOOD,
    "gpqa_diamond_cot_zeroshot": _GPQA,
    "gpqa_diamond_cot_n_shot": _GPQA,
    "gpqa_diamond_generative_n_shot": _GPQA,
    "aime24": _COMMON["aime24"],
    "aime25": _COMMON["aime25"],
}


def find_task(result: FoundResult, given: Mapping[str, str]) -> NamedTask:
    """Return the task here for a result. `given` names tasks by the tool's name, "" for any.

    Raises ReferenceFileError if none is known.
    """
    theirs = result.task
    named = given.get(theirs) or given.get("")
    if named is not None:
        return _find_row(result, named) or NamedTask(
            name=named, alike=named == f"{LM_EVAL}{theirs}"
        )
    if result.family == "lm-eval":
        return _LM_EVAL.get(theirs) or NamedTask(name=f"{LM_EVAL}{theirs}", alike=True)
    short = re.sub(r"^(ns|adlr)_", "", theirs.rsplit("/", 1)[-1].rsplit(".", 1)[-1].lower())
    if short in _COMMON:
        return _COMMON[short]
    if short in registry.names(TASKS):
        return NamedTask(name=short, alike=result.family == EXPORTED)
    raise ReferenceFileError(
        f"{result.file}: the task {theirs!r} of {result.tool} is none that is known here."
        f"{registry.nearest(short, list(registry.names(TASKS)))}",
        hint=f"Name the task here: --task {theirs}=TASK (serve-eval data list tasks).",
    )


def _find_row(result: FoundResult, named: str) -> NamedTask | None:
    """Return the row of a task of lm-eval that the user named, by the scores that it has."""
    for theirs, row in _LM_EVAL.items() if result.family == "lm-eval" else ():
        if row.name == named and set(row.scores) & result.scores.keys():
            return row if theirs == result.task else replace(row, alike=False)
    return None


def read_given(names: Sequence[str]) -> dict[str, str]:
    """Return THEIRS=OURS, or OURS for any, as a table. Raises PlanError for a name given twice."""
    table: dict[str, str] = {}
    for name in names:
        theirs, equals, ours = name.partition("=")
        key, task = (theirs, ours) if equals else ("", theirs)
        if not task or key in table:
            raise PlanError(f"--task {name}: name a task once, as TASK or as THEIRS=TASK")
        table[key] = task
    return table
