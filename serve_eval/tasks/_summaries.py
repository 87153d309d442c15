"""Clean texts and score summaries as TensorRT-LLM's evaluator of summaries does."""

from __future__ import annotations

from serve_eval.schema import Response, Sample, Score
from serve_eval.scorers import rouge


def clean(text: str) -> str:
    """Return a text without outer white space and with "n't" rejoined, as in a news corpus."""
    return text.strip().replace(" n't", "n't")


def score(sample: Sample, response: Response) -> Score:
    """Return ROUGE-1 of the answer against the target."""
    return rouge.rouge1(response.text, sample.target)


def right_and_wrong(sample: Sample) -> tuple[str, str]:
    """Return the target, and a text that shares no word with any target."""
    return f" {sample.target}", " ???"
