"""The answer is a translation: BLEU against one reference (Papineni et al. 2002; extra `media`).

The package sacrebleu counts matching n-grams and computes the value. BLEU of a corpus is no mean of
the sentences': it depends on the sums of their counts, which are the parts of a score here. The
value of a single score is BLEU of that sentence, for readers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from serve_eval.errors import PlanError, install_hint
from serve_eval.schema import Score
from serve_eval.scorers._expected import grade_value

ORDER = 4
ANSWER_LENGTH, REFERENCE_LENGTH = "answer length", "reference length"
MATCHES = tuple(f"matches {n + 1}" for n in range(ORDER))
NGRAMS = tuple(f"n-grams {n + 1}" for n in range(ORDER))
COUNTS = (ANSWER_LENGTH, REFERENCE_LENGTH, *MATCHES, *NGRAMS)
"""Parts of a score: the lengths in tokens, and per n the n-grams of the answer and those found."""
IN_FORM = "in the asked form"
"""Part of a score: the share of answers that name the language before the translation."""

_EDGES = "\u200b\ufeff"
"""Characters without a width that may surround an answer."""
_OPENINGS = (
    "translation:",
    "translated:",
    "english translation:",
    "the english translation is:",
    "here's the translation:",
    "here is the translation:",
    "the translation is:",
)
"""Openings that the suite removes, each once and in this order."""
_QUOTES = (('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u2018", "\u2019"))


def extract_translation(text: str, language: str) -> tuple[str, bool]:
    """Return the translation within an answer, and whether the answer names `language` before it.

    It is what follows the last "German:", up to an empty line; or else the whole answer. Openings
    such as "Translation:" and quotation marks around it are removed.
    """
    found = list(re.finditer(re.escape(f"{language}:"), text, re.IGNORECASE))
    if not found:
        return _unwrap(text), False
    return _unwrap(text[found[-1].end() :].partition("\n\n")[0]), True


def score_translation(answer: str, reference: str, language: str, tokenizer: str) -> Score:
    """Return BLEU of the translation within an answer, from 0 to 1, with its counts as parts.

    Raises PlanError if the optional package is missing.
    """
    translation, in_form = extract_translation(answer, language)
    found = sentence_scorer(tokenizer).sentence_score(translation, [reference])
    value = min(1.0, round(found.score / 100.0, 12))
    counts = (found.sys_len, found.ref_len, *found.counts, *found.totals)
    parts = {name: float(count) for name, count in zip(COUNTS, counts, strict=True)}
    return grade_value(value, translation, {**parts, IN_FORM: float(in_form)})


def corpus_bleu(sums: Sequence[float]) -> float:
    """Return BLEU of a corpus, from 0 to 1, by the sums of `COUNTS`.

    It is sacrebleu's formula with its smoothing: the k-th n for which nothing matches counts as if
    1 / 2^k n-grams matched. sacrebleu's own function takes whole numbers only, which a gradient
    does not have.
    """
    answered, wanted, *counts = sums
    matches, possible = counts[:ORDER], counts[ORDER:]
    if not any(matches) or not all(possible):
        return 0.0
    logs, credit = 0.0, 1.0
    for found, of in zip(matches, possible, strict=True):
        if found == 0.0:
            credit /= 2.0
        logs += math.log((found or credit) / of)
    brevity = min(0.0, 1.0 - wanted / answered)
    return math.exp(brevity + logs / ORDER)


@lru_cache(maxsize=8)
def sentence_scorer(tokenizer: str) -> Any:
    """Return sacrebleu's scorer of single sentences.

    Raises PlanError if the package, or what it needs for a tokenizer, is not installed.
    """
    try:
        from sacrebleu.metrics.bleu import BLEU
    except ImportError as error:
        raise PlanError("BLEU needs the package sacrebleu", hint=install_hint("media")) from error
    try:
        return BLEU(tokenize=tokenizer, effective_order=True)
    except RuntimeError as error:
        raise PlanError(
            f"sacrebleu's tokenizer {tokenizer} needs packages that are not installed",
            hint="For Japanese: pip install 'sacrebleu[ja]'.",
        ) from error


def _unwrap(text: str) -> str:
    """Return a translation without openings and without one pair of quotation marks of a kind."""
    bare = text.strip().strip(_EDGES).strip()
    for opening in _OPENINGS:
        if bare.lower().startswith(opening):
            bare = bare[len(opening) :].strip()
    for first, last in _QUOTES:
        if len(bare) > 1 and bare.startswith(first) and bare.endswith(last):
            bare = bare[1:-1].strip()
    return bare
