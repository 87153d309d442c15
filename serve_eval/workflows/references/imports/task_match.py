"""Match an imported result with our task: its name, protocol and prompts."""

from __future__ import annotations

import hashlib
import math
import re
from array import array
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, field, replace
from typing import Any

from serve_eval.errors import DatasetError, PlanError, ReferenceFileError
from serve_eval.frozen import freeze, freeze_places
from serve_eval.plan.applicable_reference import list_unrecorded
from serve_eval.plugins import registry
from serve_eval.protocol.shared import OPTIONS, TASKS, build_task
from serve_eval.schema import DataRoots, Sample, Spec, Task
from serve_eval.workflows.references.imports.files import FoundResult, FoundSample, digest_sample
from serve_eval.workflows.references.imports.lm_eval import EXPORTED

LM_EVAL = "lm_eval:"
STRICT, FLEXIBLE = "exact_match,strict-match", "exact_match,flexible-extract"


@freeze_places
class NamedTask:
    """A task here for a task of another tool, with options that the name implies.

    `alike` says that the tool asks as we do; otherwise it is known to word its prompts differently.
    The value is the mean of `scores` (empty: the tool's main one).
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    _: KW_ONLY
    alike: bool = False
    scores: Sequence[str] = ()


_GPQA = NamedTask("gpqa", {"subset": "diamond"})
_LIKELIHOOD = NamedTask("mmlu", {"scoring": "loglikelihood"}, scores=("acc,none",))
_PASS = NamedTask("humaneval", {"metric": "pass@1"})
_COMMON: Mapping[str, NamedTask] = {
    "gpqa": _GPQA,
    "gpqa_diamond": _GPQA,
    "gpqa_main": NamedTask("gpqa", {"subset": "main"}),
    "gpqa_extended": NamedTask("gpqa", {"subset": "extended"}),
    "humaneval": _PASS,
    "mmlu_0_shot": NamedTask("mmlu", {"num_fewshot": 0}),
    "mmlu_5_shot": NamedTask("mmlu", {"num_fewshot": 5}),
    **{
        written: NamedTask("aime", {"year": year})
        for year in (2024, 2025, 2026)
        for written in (f"aime{year}", f"aime_{year}", f"aime{year % 100}")
    },
    "longbenchv2": NamedTask("longbench_v2"),
}
"""Names that several tools use. A name of a task here needs no row."""
_LM_EVAL: Mapping[str, NamedTask] = {
    "gsm8k": NamedTask("gsm8k", alike=True, scores=(STRICT, FLEXIBLE)),
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
        return _find_row(result, named) or NamedTask(named, alike=named == f"{LM_EVAL}{theirs}")
    if result.family == "lm-eval":
        return _LM_EVAL.get(theirs) or NamedTask(f"{LM_EVAL}{theirs}", alike=True)
    short = re.sub(r"^(ns|adlr)_", "", theirs.rsplit("/", 1)[-1].rsplit(".", 1)[-1].lower())
    if short in _COMMON:
        return _COMMON[short]
    if short in registry.names(TASKS):
        return NamedTask(short, alike=result.family == EXPORTED)
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


PROMPTS = "prompts"
"""Field of a protocol that names prompts which are not ours. No task has it, so that a run is
refused unless it allows the mismatch."""
SAMPLING = ("max_tokens", "temperature", "top_p", "seed", "stop", "extra_body")
"""Fields that do not follow from equal prompts."""
_SCORING = ("filter", "metric", "scoring")
_VERSIONS = ("lm_eval", "config", "task_version")
_UNSEEN = ("prefix", "truncate_prompt_tokens", "thinking")
"""Further fields that prompts do not show."""


@freeze
class ImportedTask:
    """Our task under the protocol of an imported result.

    `source` is the tool. `scores` are the tool's scores whose mean is the value. `told` are the
    fields of the protocol that the files hold.
    """

    spec: Spec
    task: Task
    source: str
    scores: tuple[str, ...]
    told: Mapping[str, Any]

    def complete(self) -> dict[str, Any]:
        """Return the fields with those that follow from equal prompts."""
        own = {**self.task.protocol, **self.task.reference_fields}
        hidden = (*SAMPLING, *_SCORING, *_VERSIONS, *_UNSEEN)
        follow = {name: value for name, value in own.items() if name not in hidden}
        # Equal prompts show more than the versions of what made them.
        told = {name: value for name, value in self.told.items() if name not in _VERSIONS}
        return {**told, **follow}

    def list_unknown(self, protocol: Mapping[str, Any]) -> list[str]:
        """Return the fields of the task that a protocol lacks and that may decide a value."""
        own = {**self.task.protocol, **self.task.reference_fields}
        return list_unrecorded(own, protocol, self.source)


def build_imported(result: FoundResult, known: NamedTask) -> ImportedTask:
    """Return our task with all options that a result tells.

    Raises PlanError for options that exclude each other, or a task that is not there, and
    ReferenceFileError for a result without the score that the task needs.
    """
    scores, chosen = _choose_scores(result, known)
    own = registry.options_of(registry.load(TASKS, known.name))
    told = {**_drop_idle(result.told), **known.options, **chosen}
    options = {
        name: value
        for name, value in told.items()
        if value is not None and (name in own or name in OPTIONS)
    }
    spec = Spec(name=known.name, options=options)
    task = build_task(spec, known.name)
    if known.name.startswith(LM_EVAL):
        metric = str(task.protocol["metric"])
        scores, told = _check_scores(result, (metric,)), {**told, "metric": metric}
    held = {
        name: task.protocol[name] if name in options else value
        for name, value in told.items()
        if name in task.protocol
    }
    return ImportedTask(spec=spec, task=task, source=result.tool, scores=scores, told=held)


def _choose_scores(result: FoundResult, known: NamedTask) -> tuple[tuple[str, ...], dict[str, Any]]:
    """Return the scores whose mean is the value, and the option that it implies."""
    if known.name.startswith(LM_EVAL):
        return (), {}
    if not known.scores:
        return (next(iter(result.scores)),), {}
    there = tuple(name for name in known.scores if name in result.scores)
    if STRICT not in known.scores:
        return _check_scores(result, known.scores), {}
    if not there:
        _check_scores(result, known.scores)
    return there, {"filter": "mean" if len(there) > 1 else there[0].split(",")[1]}


def _check_scores(
    result: FoundResult, wanted: tuple[str, ...] | list[str] | Any
) -> tuple[str, ...]:
    if lacking := [name for name in wanted if name not in result.scores]:
        raise ReferenceFileError(
            f"{result.file}: {result.task} has no {', '.join(lacking)}, only"
            f" {', '.join(result.scores)}"
        )
    return tuple(wanted)


def _drop_idle(told: Mapping[str, Any]) -> dict[str, Any]:
    """Return the protocol without a sampling seed at temperature 0, where nothing is drawn."""
    idle = told.get("temperature") == 0
    return {name: value for name, value in told.items() if not (idle and name == "seed")}


@freeze
class ComparedPrompts:
    """A comparison of the prompts of a result with ours.

    `equal` is None if that is unknown; `text` says so. If they are equal, `samples` are ours in
    their order, and `runs` have their scores, one for each answer (none: some answers lack them).
    """

    equal: bool | None
    text: str
    samples: Sequence[Sample] = ()
    runs: Sequence[array[float]] = ()


def compare_prompts(result: FoundResult, made: ImportedTask, roots: DataRoots) -> ComparedPrompts:
    """Return whether the prompts of a result are ours, by their digests."""
    given = result.samples
    if not given or any(one.prompt is None for one in given):
        return ComparedPrompts(equal=None, text="unknown: the file does not hold them")
    try:
        ours = _load(made.task, roots)
    except (DatasetError, PlanError) as error:
        why = str(error).splitlines()[0]
        return ComparedPrompts(equal=None, text=f"unknown: our data cannot be read: {why}")
    by_digest: dict[bytes | None, list[Sample]] = defaultdict(list)
    for sample in ours:
        by_digest[digest_sample(sample)].append(sample)
    answers: dict[bytes, list[FoundSample]] = defaultdict(list)
    for one in given:
        assert one.prompt is not None
        answers[one.prompt].append(one)
    equal = [digest for digest in answers if digest in by_digest]
    if len(equal) < len(answers):
        return ComparedPrompts(
            equal=False, text=f"{len(equal):,} of {len(answers):,} are equal to ours"
        )
    text = f"all {len(answers):,} are equal to ours"
    if any(len(by_digest[digest]) > 1 for digest in answers):
        more = "; several of our samples have one prompt, so no scores of single answers are kept"
        return ComparedPrompts(equal=True, text=f"{text}{more}")
    samples = [one for one in ours if (digest := digest_sample(one)) and digest in answers]
    rows = [answers[digest] for one in samples if (digest := digest_sample(one))]
    runs = _list_runs(rows, made.scores)
    if not runs:
        text += "; answers lack scores, so none are kept"
    return ComparedPrompts(equal=True, text=text, samples=samples, runs=runs)


def digest_all(samples: Sequence[FoundSample]) -> str:
    """Return the number and a checksum of the prompts of a result, in any order."""
    digests = sorted({one.prompt for one in samples if one.prompt is not None})
    content = hashlib.sha256(b"".join(digests)).hexdigest()
    return f"{len(digests)} sha256:{content[:16]}"


def _load(task: Task, roots: DataRoots) -> Sequence[Sample]:
    """Return all samples of a task, also those that it does not ask by default."""
    found = task.load(roots, task.hypothesis.num_samples or 1)
    if found.total > len(found.samples):
        found = task.load(roots, found.total)
    return found.samples


def _list_runs(rows: Sequence[Sequence[FoundSample]], scores: Sequence[str]) -> list[array[float]]:
    """Return a run for each answer to a prompt; none if the numbers of answers or scores differ."""
    times = {len(row) for row in rows}
    if len(times) != 1 or not all(
        name in one.scores for row in rows for one in row for name in scores
    ):
        return []
    return [
        array(
            "d", (math.fsum(row[i].scores[name] for name in scores) / len(scores) for row in rows)
        )
        for i in range(times.pop())
    ]
