"""Tool calls and guided decoding: valid calls, names, schemas and endings; generated.

No benchmark of models: the requests are easy, and what fails is mostly a parser, a stream or
guided decoding. A sample offers tools, such as get_weather(city, days), and asks "Please get the
weather forecast for Oslo for 3 days", or has a `response_format` and dictates the JSON. It is right
if nothing is wrong: JSON, name, schema, call or none, marks, finish_reason, ids and indexes, and
token counts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated

from serve_eval.errors import PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Metric,
    Need,
    Response,
    Sample,
    SamplingParams,
    Score,
    Scored,
    Task,
)
from serve_eval.scorers._served_call import CallFault, count_trigger, read_expectation, score_served
from serve_eval.scorers._validation import check_schema
from serve_eval.scorers.tool_call import as_text
from serve_eval.tasks._samples import RandomSeed, break_down
from serve_eval.tasks._tool_requests import (
    COMMON,
    KIND,
    KINDS,
    SET_VERSION,
    SHAPE,
    TOOL_KINDS,
    generate_samples,
)


def task(
    *,
    num_samples: Annotated[
        int | None, Setting("Number of samples to ask. Not set: all of the chosen kinds.")
    ] = None,
    kinds: Annotated[
        list[str] | None,
        Setting("Kinds of requests. Not set: all that OpenAI's API has."),
    ] = None,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    Raises PlanError for a number below 1 and for unknown kinds.
    """
    chosen = COMMON if kinds is None else tuple(kind for kind in KINDS if kind in kinds)
    if unknown := sorted({*(kinds or ())} - {*KINDS}):
        raise PlanError(
            f"tool_calls: unknown kinds: {', '.join(unknown)}", hint=f"Known: {', '.join(KINDS)}."
        )
    most = sum(KINDS[kind][0] for kind in chosen)
    asked = most if num_samples is None else num_samples
    if not 1 <= asked <= most:
        raise PlanError(f"tool_calls: num_samples must be from 1 to {most}")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        check_schema("{}")  # The first one imports the validator: not while answers arrive.
        samples = generate_samples(random_seed, chosen)
        return Dataset(samples=samples[:wanted], files=(), total=len(samples))

    return Task(
        name="tool_calls",
        version=1,
        reference_file="tool_calls",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=asked),
        sampling=SamplingParams(max_tokens=1024),
        chat=True,
        protocol={
            "set_version": SET_VERSION,
            "kinds": list(chosen),
            "random_seed": random_seed,
        },
        load=load,
        score=score_served,
        answers=_answers,
        breakdown=break_down(KIND, SHAPE),
        secondary=_measure_trigger,
        requires=frozenset({Need.TOOLS}) if {*chosen} & {*TOOL_KINDS} else frozenset(),
        failure_mode=_name_fault,
        judges_empty=True,
        scoring="inline",
    )


def _answers(sample: Sample) -> tuple[str, str]:
    expected = read_expectation(sample)
    calls = [
        {"name": call.name, "arguments": json.loads(call.arguments)} for call in expected.calls
    ]
    if expected.wanted == "call":
        return as_text(calls), "I will not call a tool."
    if expected.wanted == "no call":
        needless = as_text([{"name": "set_timer", "arguments": {"minutes": 5}}])
        return expected.right, needless if expected.auto else "<tool_call>"
    return expected.right, "???"


def _name_fault(sample: Sample, response: Response, score: Score) -> str:
    return score.mode or score.outcome.value


def _measure_trigger(scored: Scored) -> Mapping[str, float]:
    """Return precision, recall and F1 of calling where the model may choose, in points."""
    labels = []
    for sample, score in scored:
        expected = read_expectation(sample)
        if expected.auto:
            wanted = expected.wanted == "call"
            missed = bool(score.parts.get(CallFault.MISSED))
            unwanted = bool(score.parts.get(CallFault.UNWANTED))
            labels.append((wanted, not missed if wanted else unwanted))
    found = count_trigger(labels)
    return {
        "trigger precision": 100.0 * found.precision,
        "trigger recall": 100.0 * found.recall,
        "trigger F1": 100.0 * found.f1,
    }
