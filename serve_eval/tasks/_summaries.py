"""What TensorRT-LLM's evaluator of summaries does to every text and answer; the sets that it runs
share it.
"""

from __future__ import annotations

from serve_eval.schema import Response, Sample, Score
from serve_eval.scorers import rouge


def clean(text: str) -> str:
    """A text without white space around it, and with the mending of how a news corpus was split
    into words.
    """
    return text.strip().replace(" n't", "n't")


def score(sample: Sample, response: Response) -> Score:
    """ROUGE-1 of the answer against the target."""
    return rouge.rouge1(response.text, sample.target)


def right_and_wrong(sample: Sample) -> tuple[str, str]:
    """The target, and a text that shares no word with any."""
    return f" {sample.target}", " ???"
