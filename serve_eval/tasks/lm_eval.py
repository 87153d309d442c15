"""Any task of lm-evaluation-harness (extra lm-eval): its documents, prompts, filters and metrics, asked by our client.

lm-eval builds the documents and the requests of a task and judges the answers; between the two stands our engine. The
tasks that generate, that choose by likelihood and that measure a text's likelihood are asked, of one request or several
per document; those that need several generated answers per document, images or a Python class are not. Metrics keep
lm-eval's names and aggregations: docs/lm-eval.md.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evaluation.engine.scoring import recipe_for, why_not_rebuilt
from serve_eval.harness import library, seeds
from serve_eval.harness.answers import answers_of, choose, try_scoring
from serve_eval.harness.data import with_local_files
from serve_eval.harness.instances import Prefix, as_text, generated, judged, rolled, sampling_of
from serve_eval.harness.measures import (
    DOCUMENT,
    IN_PERCENT,
    NOTHING_FOUND,
    Documents,
    Key,
    Measure,
    aggregated,
    called,
    mean_of,
    measured,
    measures_of,
    number,
    said,
)
from serve_eval.plugins import extensions
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import (
    MEAN,
    Aggregation,
    DataRoots,
    Dataset,
    Hypothesis,
    Limits,
    Metric,
    Need,
    Outcome,
    Response,
    Sample,
    SamplingParams,
    Score,
    Scored,
    Spec,
    Task,
    file_stem,
)

_loaded: dict[tuple[object, ...], Documents] = {}
"""What was loaded in this process, by all that decides it: two tasks that differ in how they score share it."""


def task(
    name: str,
    *,
    num_fewshot: int | None = None,
    data_files: dict[str, str] | None = None,
    metric: str | None = None,
    filter: str | None = None,  # noqa: A002
    percent: bool | None = None,
    fewshot_as_multiturn: bool = False,
    prefix: str | bool | None = None,
    sigma: float = 50.0,
) -> Task:
    """The task with its options.

    `num_fewshot`: worked examples, the task's own number by default. `data_files`: local files by split, in place of
    the task's own data. `metric` and `filter`: which of the task's figures is the value, the first by default; the
    others stand beside it. `percent`: a document's figure lies between 0 and 1 and is shown in percent (known of
    accuracies and exact matches). `fewshot_as_multiturn`: by chat, in the turns that lm-eval makes of the examples.
    `prefix`: the text that begins a text to the model, such as <s>, where a likelihood has no context; true where the
    server puts a token of its own there; an empty text for nothing. Where it is not given,
    serve_eval.evaluation.first_token settles it before the task is loaded for a run. `sigma`: spread of a document's
    figure in points, for references without their own. Raises PlanError for what cannot be asked.
    """
    own = extensions.lm_eval_folders()
    config = library.config(name, own)
    settled = library.settled(config)
    extensions.note_file("serve_eval.tasks", f"lm_eval:{name}", library.place(name, own))
    _check(name, config, settled, num_fewshot, fewshot_as_multiturn)
    shots = (settled.num_fewshot or 0) if num_fewshot is None else num_fewshot
    kind = settled.output_type
    measures = _measures(name, config)
    filters = [one["name"] for one in config.get("filter_list") or ({"name": "none"},)]
    if filter is not None and filter not in filters:
        raise PlanError(f"lm_eval:{name}: no filter {filter!r}: it has {', '.join(filters)}")
    usual = next(iter(measures.values()))
    chosen = usual if metric is None else measures.get(metric) or mean_of(metric)
    key = (chosen.name, filters[0] if filter is None else filter)
    in_percent = chosen.is_mean and chosen.name in IN_PERCENT if percent is None else percent
    sampling, extra = _sampling(name, settled.generation_kwargs or {})
    begins = prefix or ""
    deciding: dict[str, Any] = {
        "data_files": data_files,
        "num_fewshot": num_fewshot,
        "fewshot_as_multiturn": fewshot_as_multiturn,
        "prefix": begins,
    }
    loaded = _key(name, settled, own=own, **deciding)

    def documents() -> Documents:
        return _loaded[loaded]

    def load(roots: DataRoots, wanted: int) -> Dataset:
        places, sources = with_local_files(name, config, data_files, roots, own)
        if loaded not in _loaded and (alike := _but_for_the_prefix(loaded)) is not None:
            _loaded[loaded] = replace(alike, items={})
        if loaded not in _loaded or _loaded[loaded].sources != sources:
            with seeds.as_in_a_run():
                settings = {**library.read(name, own), **places, "num_fewshot": shots}
                found = library.load(name, settings, online=roots.allow_hub)
                instances = library.build(found, multiturn=fewshot_as_multiturn, as_text=as_text)
            by_document: dict[str, list[Any]] = {}
            for instance in instances:
                by_document.setdefault(str(instance.doc_id), []).append(instance)
            _loaded[loaded] = Documents(task=found, instances=by_document, sources=sources)
        here = documents()
        base = settled.generation_kwargs
        samples = [_sample(here, kind, doc, base, fewshot_as_multiturn, begins) for doc in here.instances]
        if not settled.unsafe_code:
            scored = {"metric": metric, "filter": filter, "percent": percent}
            spec = Spec(name=f"lm_eval:{name}", options={**deciding, **scored})
            try_scoring(here, samples[0], chosen, key, lambda: _why_not_elsewhere(spec, roots, wanted))
        return Dataset(samples=samples, files=sources, total=len(samples))

    def score(sample: Sample, response: Response) -> Score:
        items, filtered = measured(documents(), sample.metadata[DOCUMENT], said(documents(), response))
        if key not in items:
            raise ServeEvalError(f"lm_eval:{name}: an answer has no {called(key)}", hint=choose(name, items))
        value = _value(chosen, items[key])
        if value is None:
            raise ServeEvalError(
                f"lm_eval:{name}: {called(key)} of an answer is {items[key]!r}, which is no number",
                hint="lm-eval could not take its mean either: see the functions of the task.",
            )
        if in_percent and not 0.0 <= value <= 1.0:
            raise ServeEvalError(
                f"lm_eval:{name}: {chosen.name} of an answer is {value:g}, which is no share",
                hint=f"Show it as it is: --set lm_eval:{name}.percent=false.",
            )
        left = filtered[key[1]][0]
        found = isinstance(left, str) and left != NOTHING_FOUND
        answer = left if found else _likeliest(sample, response) if sample.choices else None
        return Score(value=value, outcome=_outcome(value, left, in_percent=in_percent), answer=answer, kept=items)

    def remember(sample: Sample, score: Score) -> None:
        documents().items[sample.id] = cast(Mapping[Key, Any], score.kept)

    def secondary(scored: Scored) -> Mapping[str, float]:
        return _others(documents(), measures, key, scored)

    def of(scored: Scored) -> float:
        return aggregated(chosen, [_item(documents(), sample, key) for sample, _ in scored])

    return Task(
        name=f"lm_eval:{name}",
        version=1,
        reference_file=file_stem(f"lm_eval:{name}"),
        metric=Metric(name=chosen.name, higher_is_better=chosen.higher_is_better)
        if in_percent
        else Metric(name=chosen.name, higher_is_better=chosen.higher_is_better, lo=None, hi=None, scale=1.0),
        hypothesis=Hypothesis(sigma=sigma),
        sampling=sampling if kind == "generate_until" else SamplingParams(max_tokens=1),
        extra=extra if kind == "generate_until" else {},
        protocol={
            "lm_eval": library.version(),
            "task_version": str((settled.metadata or {}).get("version")),
            "config": _config_hash(settled),
            "num_fewshot": shots,
            "metric": called(key),
            "fewshot_as_multiturn": fewshot_as_multiturn,
            "prefix": begins,
        },
        load=load,
        score=score,
        answers=lambda sample: answers_of(documents(), sample, key),
        aggregation=MEAN if chosen.is_mean else Aggregation(name=f"{chosen.how} of {chosen.name}", of=of),
        secondary=secondary,
        prompt_logprobs=kind != "generate_until",
        chat=fewshot_as_multiturn,
        requires=frozenset({Need.LIKELIEST_TOKENS}) if _needs_likeliest(kind, config, measures) else frozenset(),
        judges_empty=True,
        unsafe=bool(settled.unsafe_code),
        remember=remember,
    )


def loaded_of(name: str, options: Mapping[str, Any]) -> tuple[Documents, Mapping[str, Measure]]:
    """What was loaded of a task in this process, and its metrics, by its name and the options of a plan."""
    own = extensions.lm_eval_folders()
    config = library.config(name, own)
    given = {option: options.get(option, usual) for option, usual in _DECIDING.items()}
    given["prefix"] = given["prefix"] or ""
    return _loaded[_key(name, library.settled(config), own=own, **given)], _measures(name, config)


def _but_for_the_prefix(key: tuple[object, ...]) -> Documents | None:
    """Return a task that was loaded under another prefix: lm-eval makes the same of it. The prefix is last in a key."""
    return next((one for known, one in _loaded.items() if known[:-1] == key[:-1]), None)


_DECIDING = {
    "data_files": None,
    "num_fewshot": None,
    "fewshot_as_multiturn": False,
    "prefix": "",
}
"""The options that decide what is loaded, with their defaults."""


def _key(name: str, settled: Any, *, num_fewshot: int | None, data_files: Any, **others: Any) -> tuple[object, ...]:
    shots = (settled.num_fewshot or 0) if num_fewshot is None else num_fewshot
    return (name, shots, json.dumps(data_files), *(others[option] for option in sorted(others)))


def _why_not_elsewhere(spec: Spec, roots: DataRoots, wanted: int) -> Unfinished | None:
    """Return why another process, whose main thread loads the task, cannot score it; None where it can."""
    places = tuple(map(str, roots.roots))
    recipe = recipe_for(spec, dataset_roots=places, allow_hub=roots.allow_hub, wanted=wanted)
    return why_not_rebuilt(recipe, limit_s=Limits().scorer_timeout_s)


# ------------------------------------------------------------------------------------------------ what a file says


def _check(name: str, config: Mapping[str, Any], settled: Any, num_fewshot: int | None, multiturn: bool) -> None:
    problems = []
    if settled.output_type not in library.KINDS:
        raise PlanError(f"lm_eval:{name}: output_type {settled.output_type!r} is none of {', '.join(library.KINDS)}")
    if not isinstance(settled.metadata or {}, Mapping):
        raise PlanError(f"lm_eval:{name}: metadata has to be a mapping, such as {{version: 1}}")
    if settled.repeats > 1:
        problems.append(f"a document of it needs {settled.repeats} answers")
    if settled.doc_to_image or settled.doc_to_audio:
        problems.append("it asks by images or sound")
    if problems:
        raise PlanError([f"lm_eval:{name}: {problem}" for problem in problems], hint=library.OTHER_WAY.format(name))
    if num_fewshot is not None and num_fewshot != 0 == config.get("num_fewshot"):
        raise PlanError(f"lm_eval:{name}: num_fewshot: the task says that it has none, which lm-eval never overrides")
    if num_fewshot is not None and num_fewshot < 0:
        raise PlanError(f"lm_eval:{name}: num_fewshot must be 0 or more")
    if multiturn and settled.output_type != "generate_until":
        raise PlanError(f"lm_eval:{name}: fewshot_as_multiturn: log-probabilities are those of a plain text")


def _sampling(name: str, given: Mapping[str, Any]) -> tuple[SamplingParams, dict[str, Any]]:
    try:
        return sampling_of(given)
    except (TypeError, ValueError) as error:
        raise PlanError(f"lm_eval:{name}: generation_kwargs: {error}") from error


def _measures(name: str, config: Mapping[str, Any]) -> dict[str, Measure]:
    try:
        return {one.name: one for one in measures_of(config)}
    except PlanError as error:
        raise PlanError(f"lm_eval:{name}: {error}") from error


def _needs_likeliest(kind: str, config: Mapping[str, Any], measures: Mapping[str, Measure]) -> bool:
    """Whether a metric asks what greedy decoding would have written."""
    if kind == "loglikelihood":
        return "acc" in measures or config.get("process_results") is not None
    return kind == "multiple_choice" and "exact_match" in measures


def _config_hash(settled: Any) -> str:
    """Of everything that a task's files say but where its data is, which the samples tell better, and the shots."""
    every = settled.to_dict(keep_callable=True)
    told = {n: v for n, v in every.items() if not n.startswith("dataset_") and n != "num_fewshot"}
    text = json.dumps(told, sort_keys=True, default=_of_code)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _of_code(value: Any) -> Any:
    """What stands for a function: its source, and of one that is bound to arguments those too. Never its address."""
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    try:
        return inspect.getsource(value)
    except (TypeError, OSError):
        return getattr(value, "__qualname__", type(value).__name__)


# ---------------------------------------------------------------------------------------------- documents and scores


def _sample(here: Documents, kind: str, doc: str, base: Any, multiturn: bool, prefix: Prefix) -> Sample:
    instances = here.instances[doc]
    with seeds.of_document(doc):
        target = _target(here.task, instances[0].doc)
    about = {"id": doc, "target": target, "metadata": {DOCUMENT: doc}}
    try:
        if kind == "generate_until":
            return generated(instances, base, multiturn=multiturn, **about)
        return (rolled if kind == "loglikelihood_rolling" else judged)(instances, prefix, **about)
    except ServeEvalError as error:
        raise type(error)(f"lm_eval:{here.task.config.task}: document {doc}: {error}", hint=error.hint) from error


def _target(task: Any, doc: Mapping[str, Any]) -> str:
    """What is expected; of a task whose choices are contexts it is the number of the right one."""
    gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
    return gold if isinstance(gold, str) else json.dumps(gold, default=str)


def _value(measure: Measure, item: Any) -> float | None:
    """What a document gave as one number: of an aggregation that is no mean, its value over this document alone. None
    where a mean lacks it."""
    if measure.is_mean:
        return number(item)
    try:
        return number(aggregated(measure, [item])) or 0.0
    except ServeEvalError:
        return 0.0  # some have none of a single document


def _outcome(value: float, left: Any, *, in_percent: bool) -> Outcome:
    if not in_percent or 0.0 < value < 1.0:
        return Outcome.PARTIAL
    if value >= 1.0:
        return Outcome.CORRECT
    return Outcome.UNPARSED if left == NOTHING_FOUND else Outcome.WRONG


def _likeliest(sample: Sample, response: Response) -> str | None:
    sums = [sum(values) for values in response.choice_logprobs or ()]
    return sample.choices[sums.index(max(sums))] if len(sums) > 1 else None


def _item(here: Documents, sample: Sample, key: Key) -> Any:
    try:
        return here.items[sample.id][key]
    except KeyError as error:
        raise ServeEvalError(f"{called(key)} of sample {sample.id} is only known with its answer") from error


def _others(here: Documents, measures: Mapping[str, Measure], key: Key, scored: Scored) -> dict[str, float]:
    """The figures beside the value, by lm-eval's own aggregations; those that it cannot compute here are left out."""
    by_key: dict[Key, list[Any]] = {}
    for sample, _ in scored:
        for other, item in here.items.get(sample.id, {}).items():
            if other != key:
                by_key.setdefault(other, []).append(item)
    told = {}
    for other, items in by_key.items():
        measure = measures.get(other[0]) or mean_of(other[0])
        try:
            value = number(aggregated(measure, items))
        except ServeEvalError:
            continue
        if value is not None:
            told[called(other)] = value * (100.0 if measure.is_mean and other[0] in IN_PERCENT else 1.0)
    return dict(sorted(told.items()))
