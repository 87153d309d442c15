"""Any task of lm-evaluation-harness (extra lm-eval), asked by our client.

lm-eval builds the documents and the requests of a task and judges the answers. Our engine sends the
requests. Tasks that generate, that choose by likelihood and that measure a text's likelihood are
supported, with one request or several per document. Tasks that need several generated answers per
document, images or a Python class are not. Metrics keep lm-eval's names and aggregations:
docs/own-questions.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, cast

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.evaluation.results.scoring import recipe_for, why_not_rebuilt
from serve_eval.frozen import freeze
from serve_eval.harness import library
from serve_eval.harness.measures import (
    DOCUMENT,
    IN_PERCENT,
    NOTHING_FOUND,
    Documents,
    Key,
    Measure,
    aggregate,
    answers_of,
    choose,
    list_results,
    mean_of,
    measure_document,
    name_figure,
    number,
    try_scoring,
)
from serve_eval.plugins import extensions
from serve_eval.plugins.setting import Setting
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
from serve_eval.tasks import _lm_eval_documents
from serve_eval.tasks._lm_eval_documents import load_parts, sample_of, source_of

__all__ = ["load_parts", "task"]


def task(
    name: str,
    *,
    num_fewshot: Annotated[
        int | None, Setting("Number of solved examples. Not set: the task's own.")
    ] = None,
    data_files: Annotated[
        dict[str, str] | None, Setting("Local files by split, instead of the task's own data.")
    ] = None,
    metric: Annotated[
        str | None, Setting("Figure that is the value. Not set: the task's first.")
    ] = None,
    filter: Annotated[  # noqa: A002  (the usual word, and the name of the option)
        str | None, Setting("Filter of the figure that is the value. Not set: the task's first.")
    ] = None,
    percent: Annotated[
        bool | None,
        Setting(
            "Show the figure, from 0 to 1, in percent. Not set: for accuracies and exact matches."
        ),
    ] = None,
    fewshot_as_multiturn: Annotated[
        bool, Setting("Ask by chat, with the examples as turns.")
    ] = False,
    prefix: Annotated[
        str | bool | None,
        Setting(
            "Text, such as <s>, before a text whose likelihood has no context; true if the "
            "server adds a token of its own; an empty text for nothing. Not set: found out "
            "before the run."
        ),
    ] = None,
    sigma: Annotated[
        float, Setting("Spread of a document's figure in points, for references without their own.")
    ] = 50.0,
) -> Task:
    """Return the task with its options.

    serve_eval.evaluation.settle sets `prefix` before the task is loaded for a run. Raises
    PlanError for unsupported tasks and options.
    """
    begins = prefix or ""
    deciding: dict[str, Any] = {
        "data_files": data_files,
        "num_fewshot": num_fewshot,
        "fewshot_as_multiturn": fewshot_as_multiturn,
        "prefix": begins,
    }
    source = source_of(name, deciding)
    config, settled, documents = source.config, source.settled, source.documents
    extensions.note_file("serve_eval.tasks", f"lm_eval:{name}", library.place(name, source.own))
    _lm_eval_documents.check_options(name, config, settled, num_fewshot, fewshot_as_multiturn)
    kind = settled.output_type
    measures = _lm_eval_documents.measures_of_task(name, config)
    figure = choose_figure(
        name, config, measures, metric=metric, filter_name=filter, percent=percent
    )
    sampling, extra = _lm_eval_documents.read_task_sampling(name, settled.generation_kwargs or {})
    scored_by = {"metric": metric, "filter": filter, "percent": percent}
    spec = Spec(name=f"lm_eval:{name}", options={**deciding, **scored_by})

    def load(roots: DataRoots, wanted: int) -> Dataset:
        here = source.load(roots)
        base = settled.generation_kwargs
        samples = [
            sample_of(here, kind, doc, base, fewshot_as_multiturn, begins) for doc in here.instances
        ]
        if not settled.unsafe_code:
            try_scoring(
                here,
                samples[0],
                figure.measure,
                figure.key,
                lambda: _why_not_elsewhere(spec, roots, wanted),
            )
        return Dataset(samples=samples, files=here.sources, total=len(samples))

    def score(sample: Sample, response: Response) -> Score:
        return figure.score(documents(), sample, response)

    def remember(sample: Sample, score: Score) -> None:
        documents().items[sample.id] = cast(Mapping[Key, Any], score.kept)

    def secondary(scored: Scored) -> Mapping[str, float]:
        return others(documents(), measures, figure.key, scored)

    return Task(
        name=f"lm_eval:{name}",
        version=1,
        reference_file=file_stem(f"lm_eval:{name}"),
        metric=figure.metric,
        hypothesis=Hypothesis(sigma=sigma),
        sampling=sampling if kind == "generate_until" else SamplingParams(max_tokens=1),
        extra=extra if kind == "generate_until" else {},
        protocol={
            "lm_eval": library.version(),
            "task_version": str((settled.metadata or {}).get("version")),
            "config": _lm_eval_documents.config_hash(settled),
            "num_fewshot": source.shots,
            "metric": name_figure(figure.key),
            "fewshot_as_multiturn": fewshot_as_multiturn,
            "prefix": begins,
        },
        load=load,
        score=score,
        answers=lambda sample: answers_of(documents(), sample, figure.key),
        aggregation=figure.aggregation(documents),
        secondary=secondary,
        prompt_logprobs=kind != "generate_until",
        no_gold="" if kind != "loglikelihood_rolling" else "the likelihood of a text is no answer",
        chat=fewshot_as_multiturn,
        requires=(
            frozenset({Need.LIKELIEST_TOKENS})
            if _lm_eval_documents.needs_likeliest(kind, config, measures)
            else frozenset()
        ),
        judges_empty=True,
        unsafe=bool(settled.unsafe_code),
        remember=remember,
    )


def _why_not_elsewhere(spec: Spec, roots: DataRoots, wanted: int) -> Unfinished | None:
    """Return why another process cannot score the task, or None if it can.

    The other process loads the task in its main thread.
    """
    recipe = recipe_for(spec, roots=roots, wanted=wanted)
    return why_not_rebuilt(recipe, limit_s=Limits().scorer_timeout_s)


@freeze
class Figure:
    """A metric after a filter, identified by `key`.

    `in_percent`: a document's figure is between 0 and 1 and is shown in percent.
    """

    task: str
    measure: Measure
    key: Key
    in_percent: bool

    @property
    def metric(self) -> Metric:
        name, higher = self.measure.name, self.measure.higher_is_better
        if self.in_percent:
            return Metric(name=name, higher_is_better=higher)
        return Metric(name=name, higher_is_better=higher, lo=None, hi=None, scale=1.0)

    def aggregation(self, documents: Callable[[], Documents]) -> Aggregation:
        """Return how the value comes from the documents.

        It is lm-eval's own function unless it is a mean.
        """
        if self.measure.is_mean:
            return MEAN

        def of(scored: Scored) -> float:
            return aggregate(
                self.measure, [_item(documents(), sample, self.key) for sample, _ in scored]
            )

        return Aggregation(name=f"{self.measure.how} of {self.measure.name}", of=of)

    def score(self, here: Documents, sample: Sample, response: Response) -> Score:
        """Score an answer. Raises ServeEvalError if it gives no figure, or one out of range."""
        items, filtered = measure_document(
            here, sample.metadata[DOCUMENT], list_results(here, response)
        )
        value = self._compute_checked(items)
        left = filtered[self.key[1]][0]
        found = isinstance(left, str) and left != NOTHING_FOUND
        answer = left if found else _likeliest(sample, response) if sample.choices else None
        return Score(
            value=value,
            outcome=_outcome(value, left, in_percent=self.in_percent),
            answer=answer,
            kept=items,
        )

    def _compute_checked(self, items: Mapping[Key, Any]) -> float:
        name, key = self.task, self.key
        if key not in items:
            raise ServeEvalError(
                f"lm_eval:{name}: an answer has no {name_figure(key)}", hint=choose(name, items)
            )
        value = _value(self.measure, items[key])
        if value is None:
            raise ServeEvalError(
                f"lm_eval:{name}: {name_figure(key)} of an answer is {items[key]!r}, which is not"
                " a number",
                hint="lm-eval could not take its mean either: check the functions of the task.",
            )
        if self.in_percent and not 0.0 <= value <= 1.0:
            raise ServeEvalError(
                f"lm_eval:{name}: {self.measure.name} of an answer is {value:g}, not between 0"
                " and 1",
                hint=f"Show it unchanged: --set lm_eval:{name}.percent=false.",
            )
        return value


def choose_figure(
    name: str,
    config: Mapping[str, Any],
    measures: Mapping[str, Measure],
    *,
    metric: str | None,
    filter_name: str | None,
    percent: bool | None,
) -> Figure:
    """Return the figure that the options name, else the task's first one.

    Raises PlanError for an unknown filter.
    """
    filters = [one["name"] for one in config.get("filter_list") or ({"name": "none"},)]
    if filter_name is not None and filter_name not in filters:
        raise PlanError(f"lm_eval:{name}: no filter {filter_name!r}: it has {', '.join(filters)}")
    usual = next(iter(measures.values()))
    chosen = usual if metric is None else measures.get(metric) or mean_of(metric)
    return Figure(
        task=name,
        measure=chosen,
        key=(chosen.name, filters[0] if filter_name is None else filter_name),
        in_percent=chosen.is_mean and chosen.name in IN_PERCENT if percent is None else percent,
    )


def _value(measure: Measure, item: Any) -> float | None:
    """Return a document's figure as one number, or None if a mean lacks it.

    If the aggregation is not a mean, it is its value over this document alone.
    """
    if measure.is_mean:
        return number(item)
    try:
        return number(aggregate(measure, [item])) or 0.0
    except ServeEvalError:
        return 0.0  # some aggregations need several documents


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
        raise ServeEvalError(
            f"{name_figure(key)} of sample {sample.id} is only known with its answer"
        ) from error


def others(
    here: Documents, measures: Mapping[str, Measure], key: Key, scored: Scored
) -> dict[str, float]:
    """Return the figures next to the value, by lm-eval's own aggregations.

    Omits those that cannot be computed here.
    """
    by_key: dict[Key, list[Any]] = {}
    for sample, _ in scored:
        for other, item in here.items.get(sample.id, {}).items():
            if other != key:
                by_key.setdefault(other, []).append(item)
    told = {}
    for other, items in by_key.items():
        measure = measures.get(other[0]) or mean_of(other[0])
        try:
            value = number(aggregate(measure, items))
        except ServeEvalError:
            continue
        if value is not None:
            told[name_figure(other)] = value * (
                100.0 if measure.is_mean and other[0] in IN_PERCENT else 1.0
            )
    return dict(sorted(told.items()))
