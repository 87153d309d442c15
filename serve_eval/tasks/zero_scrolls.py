"""ZeroSCROLLS, SQuALITY: questions about long stories, answered in a summary, by ROUGE-1.

Asked as TensorRT-LLM's suite did. Paper: Shaham et al. 2023, "ZeroSCROLLS". Data: tau/zero_scrolls,
config squality, 80 validation rows whose `input` is the whole prompt. The value is the F measure of
ROUGE-1 between the completion and `output`. Layout from documentation, not tested on the real set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import PlanError
from serve_eval.schema import DataRoots, Dataset, Hypothesis, Metric, Sample, SamplingParams, Task
from serve_eval.scorers import rouge
from serve_eval.scorers.rouge import clean, right_and_wrong, score
from serve_eval.tasks._samples import NumSamples, RandomSeed, name_document, shuffle

SOURCE = KNOWN["zero_scrolls"]
ROWS = 80


def task(
    *,
    num_samples: NumSamples = ROWS,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    The last 24576 tokens of a long prompt are kept, which hold the question. Raises PlanError for
    options out of range.
    """
    if num_samples < 1:
        raise PlanError("zero_scrolls: num_samples must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        rouge.package()  # fail before any request
        split = local.read_split(
            SOURCE,
            roots,
            "validation",
            ["id", "input", "output"],
            wanted=wanted,
            published=ROWS,
            subfolders=("squality/", ""),
        )
        samples = [
            Sample(
                id=f"validation-{i}",
                prompt=clean(split.rows[i]["input"]),
                target=split.rows[i]["output"],
                group=_name_story(split.rows[i]),
            )
            for i in shuffle(len(split.rows), random_seed)[:wanted]
        ]
        return split.build_dataset(samples)

    return Task(
        name="zero_scrolls",
        version=1,
        datasets=("zero_scrolls",),
        reference_file="zero_scrolls",
        metric=Metric(name="rouge1"),
        hypothesis=Hypothesis(num_samples=num_samples, sigma=6.97, alpha=0.002),
        sampling=SamplingParams(max_tokens=8192),
        extra={"truncate_prompt_tokens": 24576},
        protocol={
            "random_seed": random_seed,
        },
        load=load,
        score=score,
        answers=right_and_wrong,
        scoring="apart",
    )


def _name_story(row: Mapping[str, Any]) -> str:
    """Return the name of a row's story; empty if the row does not say where it is."""
    start, end = row.get("document_start_index"), row.get("document_end_index")
    if not isinstance(start, int) or not isinstance(end, int):
        return ""
    return name_document(row["input"][start:end])
