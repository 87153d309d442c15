"""ROUGE of a summary against one reference, by the rouge_score package (Lin 2004, "ROUGE: A Package for Automatic
Evaluation of Summaries"), without stemming, as TensorRT-LLM's suite uses it.

The suite aggregates with that package's bootstrap, whose middle value is the median of 1000 resampled means; a task's
value here is the plain mean of the same F measures. The two differ by the noise of the bootstrap alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from serve_eval.errors import PlanError, install_hint
from serve_eval.schema import Score
from serve_eval.scorers._graded import graded

KINDS = ("rouge1", "rouge2", "rougeL")


@lru_cache(maxsize=1)
def package() -> Any:
    """The package's scorer. Raises PlanError when the optional package is not installed."""
    try:
        from rouge_score.rouge_scorer import RougeScorer
    except ImportError as error:
        raise PlanError("ROUGE needs the package rouge_score", hint=install_hint("rouge")) from error
    return RougeScorer(list(KINDS), use_stemmer=False)


def f_measures(text: str, target: str) -> Mapping[str, float]:
    """F of ROUGE-1, ROUGE-2 and ROUGE-L, each from 0 to 1."""
    return {kind: float(found.fmeasure) for kind, found in package().score(target, text).items()}


def rouge1(text: str, target: str) -> Score:
    """The F measure of ROUGE-1; ROUGE-2 and ROUGE-L stand beside it."""
    parts = f_measures(text, target)
    return graded(parts["rouge1"], text, parts)
