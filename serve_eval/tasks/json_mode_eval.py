"""JSON mode eval: text turned into JSON of a given schema, with guided decoding.

Asked as TensorRT-LLM's evaluator does. Data: NousResearch/json-mode-eval (Apache-2.0), 100
conversations with a schema and the expected JSON. A sample asks "... extract the patient's name and
age ...". It is right if the answer parses, is valid and equals the expected one. The share of valid
answers is a second figure. Layout from documentation, not tested on the real set.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

import msgspec

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import DatasetError, PlanError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    DataRoots,
    Dataset,
    Hypothesis,
    Message,
    Metric,
    Need,
    Override,
    Response,
    Sample,
    SamplingParams,
    Score,
    Task,
)
from serve_eval.scorers._validation import check_schema
from serve_eval.scorers.json_schema import exact_match
from serve_eval.tasks._samples import NumSamples, RandomSeed, shuffle

SOURCE = KNOWN["json_mode_eval"]
ROWS = 100

Form = Literal["json", "json_schema", "none"]


class _Turn(msgspec.Struct):
    role: str
    content: str


def task(
    *,
    num_samples: NumSamples = ROWS,
    response_format: Annotated[
        Form,
        Setting(
            "Form of the schema in a request: json for trtllm-serve, json_schema for OpenAI; "
            "none sends no schema."
        ),
    ] = "json",
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    `response_format` is the form of the schema: `json` is the form that every trtllm-serve
    understands, `json_schema` OpenAI's. `none` sends no schema and requires only chat of the
    endpoint. Raises PlanError for options out of range.
    """
    if num_samples < 1:
        raise PlanError("json_mode_eval: num_samples must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        split = local.read_split(
            SOURCE,
            roots,
            "train",
            ["schema", "completion"],
            wanted=wanted,
            published=ROWS,
            subfolders=("data/", ""),
        )
        samples = []
        for i in shuffle(len(split.rows), random_seed)[:wanted]:
            row = split.rows[i]
            try:
                turns = msgspec.convert(row.get("prompt"), list[_Turn])
                expected, schema = json.loads(row["completion"]), json.loads(row["schema"])
            except (msgspec.ValidationError, ValueError) as error:
                raise DatasetError(f"{split.file.path}: row {i + 1}: {error}") from error
            check_schema(row["schema"])
            samples.append(
                Sample(
                    id=f"train-{i}",
                    prompt=tuple(Message(role=turn.role, content=turn.content) for turn in turns),
                    target=json.dumps(expected),
                    metadata={"schema": row["schema"]},
                    override=Override(extra=format_field(response_format, schema)),
                )
            )
        return split.build_dataset(samples)

    return Task(
        name="json_mode_eval",
        version=1,
        datasets=("json_mode_eval",),
        reference_file="json_mode_eval",
        metric=Metric(),
        hypothesis=Hypothesis(num_samples=num_samples),
        sampling=SamplingParams(max_tokens=512),
        extra={"truncate_prompt_tokens": 1024},
        chat=True,
        protocol={
            "response_format": response_format,
            "random_seed": random_seed,
        },
        load=load,
        score=_score,
        answers=lambda sample: (sample.target, "null"),
        requires=frozenset() if response_format == "none" else frozenset({Need.GUIDED_DECODING}),
        scoring="apart",
    )


def format_field(form: Form, schema: Any) -> dict[str, object]:
    """Return the field `response_format` of the request."""
    if form == "none":
        return {}
    if form == "json":
        return {"response_format": {"type": "json", "schema": schema}}
    return {
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": schema},
        }
    }


def _score(sample: Sample, response: Response) -> Score:
    return exact_match(response.text, sample.target, sample.metadata["schema"])
