"""The answer is a summary: its ROUGE F measure against one reference (extra `rouge`).

It uses the rouge_score package (Lin 2004, "ROUGE: A Package for Automatic Evaluation of
Summaries"), without stemming, as TensorRT-LLM's suite does.

The suite aggregates with that package's bootstrap, whose middle value is the median of 1000
resampled means; a task's value here is the plain mean of the same F measures. The two differ only
by the noise of the bootstrap.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Literal

from serve_eval.errors import PlanError, install_hint
from serve_eval.schema import Response, Sample, Score, Scorer
from serve_eval.scorers._expected import (
    find_wrong,
    grade_value,
    place,
    text_of,
    text_problems,
)

KINDS = ("rouge1", "rouge2", "rougeL")


def scorer(*, kind: Literal["rouge1", "rouge2", "rougeL"] = "rouge1") -> Scorer:
    """Return a scorer that gives the F measure of `kind`; the parts have all three.

    Raises PlanError if the optional package is missing.
    """
    package()

    def score(expected: object, response: Response) -> Score:
        parts = f_measures(response.text, text_of(expected))
        return grade_value(parts[kind], response.text, parts)

    def problems(expected: object) -> list[str]:
        wrong = text_problems(expected)
        if not wrong and f_measures(text_of(expected), text_of(expected))[kind] < 1.0:
            wrong = [
                f"{place(expected)} is too short for {kind}, which reads words of letters a to z"
                " and digits"
            ]
        return wrong

    def answers(expected: object) -> tuple[str, str]:
        return text_of(expected), find_wrong(score, expected)

    return Scorer(version=1, score=score, answers=answers, problems=problems)


@lru_cache(maxsize=1)
def package() -> Any:
    """Return the package's scorer. Raises PlanError if the optional package is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise PlanError(
            "ROUGE needs the package rouge_score", hint=install_hint("rouge")
        ) from error
    return RougeScorer(list(KINDS), use_stemmer=False)


def f_measures(text: str, target: str) -> Mapping[str, float]:
    """Return F of ROUGE-1, ROUGE-2 and ROUGE-L, each from 0 to 1."""
    return {kind: float(found.fmeasure) for kind, found in package().score(target, text).items()}


def rouge1(text: str, target: str) -> Score:
    """Return the F measure of ROUGE-1; the parts also have ROUGE-2 and ROUGE-L."""
    parts = f_measures(text, target)
    return grade_value(parts["rouge1"], text, parts)


def clean(text: str) -> str:
    """Return a text without outer white space and with "n't" rejoined, as in a news corpus."""
    return text.strip().replace(" n't", "n't")


def score(sample: Sample, response: Response) -> Score:
    """Return ROUGE-1 of the answer against the target."""
    return rouge1(response.text, sample.target)


def right_and_wrong(sample: Sample) -> tuple[str, str]:
    """Return the target, and a text that shares no word with any target."""
    return f" {sample.target}", " ???"
