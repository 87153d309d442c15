"""Any task of lm-evaluation-harness (extra lm-eval), asked by our client.

lm-eval builds the documents and the requests of a task and judges the answers. Our engine sends the
requests. Tasks that generate, that choose by likelihood and that measure a text's likelihood are
supported, with one request or several per document. Tasks that need several generated answers per
document, images or a Python class are not. Metrics keep lm-eval's names and aggregations:
docs/lm-eval.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, cast

from serve_eval.evaluation.results.scoring import recipe_for, why_not_rebuilt
from serve_eval.harness import library
from serve_eval.harness.measures import Key, answers_of, name_figure, try_scoring
from serve_eval.plugins import extensions
from serve_eval.plugins.setting import Setting
from serve_eval.processes.bounded_call import Unfinished
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Limits,
    Need,
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
from serve_eval.tasks import _lm_eval_figure as figures
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
    figure = figures.choose_figure(
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
        return figures.others(documents(), measures, figure.key, scored)

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
