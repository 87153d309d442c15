"""Write the samples of a task of serve-eval in the layout of lm-eval."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serve_eval.harness.layout import NO_FILTER, Logged, Row, mean_stderr, row, write_json
from serve_eval.plan.prepared_task import PreparedTask, request_of
from serve_eval.schema import HOLDOUT, MEAN, Message, Response, Sample, Task, TaskResult
from serve_eval.schema.media import describe_turn
from serve_eval.storage.records.scores import ScoreRecord

_HIDDEN = "(of a hold-out set)"


def write_own(
    prepared: PreparedTask,
    result: TaskResult,
    responses: Mapping[str, Response],
    scores: Mapping[str, ScoreRecord],
    repeats: int,
    write: Callable[[Iterable[Row]], str],
) -> Logged:
    """Write the samples of a task of serve-eval, and return its log.

    The score and its parts are the metrics. The repeats of a sample are its responses.
    """
    task, metric, values = prepared.task, prepared.task.metric, array("d")

    def make_rows() -> Iterator[Row]:
        for number, sample in enumerate(prepared.dataset.samples):
            ids = (sample.id, *(f"{sample.id}#{repeat}" for repeat in range(2, repeats + 1)))
            keys = [key for key in ids if key in responses and key in scores]
            if not keys:
                continue
            had = [scores[key] for key in keys]
            named = {metric.name: _mean([score.value for score in had])}
            named |= {part: _mean([score.parts[part] for score in had]) for part in had[0].parts}
            values.append(named[metric.name])
            asked, resps, left = _requests(task, sample, [responses[key] for key in keys], had)
            shared = {"group": sample.group} if sample.group else {}
            document = {"id": sample.id, "target": sample.target, **shared, **sample.metadata}
            yield row(number, document, sample.target, asked, resps, left, NO_FILTER, named)

    rows_hash = write(make_rows())
    plain = result.aggregation == MEAN.name
    figures = {metric.name: result.value / metric.scale} if result.value is not None else {}
    figures |= {part: value / metric.scale for part, value in result.parts.items()}
    figures |= {name: value for name, value in result.secondary.items() if name not in figures}
    options = {name: value for name, value in task.protocol.items() if value is not None}
    return Logged(
        task=task.file_stem,
        version=task.version,
        num_fewshot=int(str(task.protocol.get("num_fewshot") or 0)),
        config={
            "task": task.file_stem,
            **options,
            "output_type": _name_requests(prepared),
            "metric_list": [
                {
                    "metric": metric.name,
                    "aggregation": result.aggregation,
                    "higher_is_better": metric.higher_is_better,
                }
            ],
            "metadata": {"version": task.version},
        },
        values={(name, NO_FILTER): value for name, value in figures.items()},
        stderrs={(metric.name, NO_FILTER): mean_stderr(values) if plain else None},
        higher_is_better={metric.name: metric.higher_is_better},
        planned=len(prepared.dataset.samples),
        answered=len(values),
        rows_hash=rows_hash,
    )


def _name_requests(prepared: PreparedTask) -> str:
    """Return lm-eval's name for the kind of requests, by which its own scripts read the rows."""
    if any(sample.choices for sample in prepared.dataset.samples):
        return "multiple_choice"
    return "loglikelihood_rolling" if prepared.task.prompt_logprobs else "generate_until"


def _requests(
    task: Task, sample: Sample, responses: Sequence[Response], scores: Sequence[ScoreRecord]
) -> tuple[list[list[Any]], list[list[Any]], list[Any]]:
    """Return what was asked, what came back and what was extracted, per request.

    For a hold-out set, the question and the answer are left out, since the answer may be the right
    one and these files are made for sharing.
    """
    if sample.choices:
        asked: list[list[Any]] = [list(pair) for pair in sample.continued]
        told = [response.choice_logprobs or () for response in responses]
        sums = [[[sum(one[i]), None] for one in told] for i in range(len(asked))]
        return asked, sums, [one[0] for one in sums]
    prompt = (
        sample.prompt
        if isinstance(sample.prompt, str)
        else [write_json(list(map(_turn, map(describe_turn, sample.prompt))))]
    )
    if task.prompt_logprobs:
        totals = [
            sum(response.prompt_logprobs.values)
            for response in responses
            if response.prompt_logprobs
        ]
        return [[prompt]], [totals], [totals[0] if totals else None]
    sampling = request_of(task, sample).sampling
    given = {
        "until": list(sampling.stop),
        "max_gen_toks": sampling.max_tokens,
        "temperature": sampling.temperature,
        "do_sample": bool(sampling.temperature),
    }
    answers = [score.answer or "" for score in scores]
    if HOLDOUT in sample.metadata:
        return (
            [[_HIDDEN, given]],
            [[_HIDDEN] * len(responses)],
            answers[:1] if len(answers) == 1 else answers,
        )
    return (
        [[prompt, given]],
        [[response.text for response in responses]],
        answers[:1] if len(answers) == 1 else answers,
    )


def _turn(message: Message) -> dict[str, object]:
    return {"role": message.role, "content": msgspec.to_builtins(message.content)}


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
