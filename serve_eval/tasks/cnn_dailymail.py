"""CNN/DailyMail: summaries of news articles, by ROUGE-1, as TensorRT-LLM's evaluator asks them.

Paper: See et al. 2017, "Get To The Point". Data: ccdv/cnn_dailymail, version 3.0.0, 11490 test
articles (Apache-2.0). A sample is "LONDON, England -- ... TL;DR:", and the value is the F measure
of ROUGE-1 between the completion and the highlights. Layout from documentation, not tested on the
real set.
"""

from __future__ import annotations

from serve_eval.datasets import local
from serve_eval.datasets.source import KNOWN
from serve_eval.errors import PlanError
from serve_eval.schema import DataRoots, Dataset, Hypothesis, Metric, Sample, SamplingParams, Task
from serve_eval.scorers import rouge
from serve_eval.scorers.rouge import clean, right_and_wrong, score
from serve_eval.tasks._samples import NumSamples, RandomSeed, shuffle

SOURCE = KNOWN["cnn_dailymail"]
TEST_ROWS = 11490
PLACES = ("", "3.0.0/")


def task(
    *,
    num_samples: NumSamples = 512,
    random_seed: RandomSeed = 0,
) -> Task:
    """Return the task with its options.

    The last 924 tokens of a long article are kept, with the cue. An endpoint that cannot truncate
    gets another prompt. The references hold the value under `accuracy`. Raises PlanError for
    options out of range.
    """
    if num_samples < 1:
        raise PlanError("cnn_dailymail: num_samples must be 1 or more")

    def load(roots: DataRoots, wanted: int) -> Dataset:
        rouge.package()  # fail before any request
        split = local.read_split(
            SOURCE,
            roots,
            "test",
            ["article", "highlights"],
            wanted=wanted,
            published=TEST_ROWS,
            subfolders=PLACES,
        )
        samples = [
            Sample(
                id=f"test-{i}",
                prompt=prompt_text(split.rows[i]["article"]),
                target=split.rows[i]["highlights"],
            )
            for i in shuffle(len(split.rows), random_seed)[:wanted]
        ]
        return split.build_dataset(samples)

    return Task(
        name="cnn_dailymail",
        version=1,
        datasets=("cnn_dailymail",),
        reference_file="cnn_dailymail",
        metric=Metric(name="rouge1"),
        hypothesis=Hypothesis(num_samples=num_samples, sigma=11.06, alpha=0.002),
        sampling=SamplingParams(max_tokens=100),
        extra={"truncate_prompt_tokens": 924},
        protocol={
            "random_seed": random_seed,
        },
        load=load,
        score=score,
        answers=right_and_wrong,
        scoring="apart",
    )


def prompt_text(article: str) -> str:
    """Return the article with the cue to summarise it."""
    return clean(f"{article} TL;DR:")
