"""The answer is a transcript: its word errors against the words that were spoken (extra `media`).

An edit is a substituted, deleted or inserted word; the package jiwer finds the least number of them
(Levenshtein 1966). The word error rate of a corpus is the sum of the edits divided by the sum of
the reference words. It exceeds 1 if a model inserts many words.

`normalize_transcript` follows TensorRT-LLM's suite, because its references are rates of texts in
that form. Its rules are blunt: a mark that is written apart from its letter in decomposed Unicode
becomes a space, so that "naïve" counts as the two words "nai ve".
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from serve_eval.errors import PlanError, install_hint
from serve_eval.frozen import freeze
from serve_eval.schema import Outcome, Score

EDITS, WORDS = "edits", "words"
HITS, SUBSTITUTIONS, DELETIONS, INSERTIONS = "hits", "substitutions", "deletions", "insertions"
"""Parts of a score."""

_DROPPED = tuple(
    re.compile(pattern)
    for pattern in (
        r"<\|.*?\|>",  # special tokens of a model
        r"[<\[][^>\]]*[>\]]",  # markup, and remarks such as [music]
        r"\([^)]+\)",
        r"\b(?:hmm|mhm|mm|mmm|uh|um)\b",
    )
)
_NO_WORD = "MSP"
"""Unicode's categories of marks, symbols and punctuation."""


@freeze
class WordErrors:
    """The word errors of one transcript. `words` is the number of words of the reference."""

    words: int
    hits: int
    substitutions: int
    deletions: int
    insertions: int

    @property
    def edits(self) -> int:
        """The least number of edits that turn the reference into the transcript."""
        return self.substitutions + self.deletions + self.insertions

    @property
    def rate(self) -> float:
        """The edits per reference word. Without a reference word, the number of inserted words."""
        return self.edits / max(self.words, 1)


def normalize_transcript(text: str) -> str:
    """Return the words of a transcript in lower case, with one space between them.

    Special tokens, remarks in brackets, fillers such as "uh", punctuation, symbols and marks are
    removed.
    """
    text = text.casefold()
    for dropped in _DROPPED:
        text = dropped.sub(" ", text)
    characters = unicodedata.normalize("NFKD", text)
    kept = (" " if unicodedata.category(c)[0] in _NO_WORD else c for c in characters)
    return " ".join("".join(kept).split())


def count_word_errors(answer: str, reference: str) -> WordErrors:
    """Return the word errors of an answer, both texts normalized.

    Nothing is left of some texts: against an empty reference every word of the answer is an
    insertion, and an empty answer deletes every word of the reference. Raises PlanError if the
    optional package is missing.
    """
    said, spoken = normalize_transcript(answer), normalize_transcript(reference)
    found = package()(spoken, said)
    return WordErrors(
        words=found.hits + found.substitutions + found.deletions,
        hits=found.hits,
        substitutions=found.substitutions,
        deletions=found.deletions,
        insertions=found.insertions,
    )


def score_transcript(answer: str, reference: str) -> Score:
    """Return the edits per reference word, with the counts as parts.

    The outcome is correct without an edit, and wrong if no word of the reference was heard.
    """
    found = count_word_errors(answer, reference)
    outcome = Outcome.PARTIAL if found.hits else Outcome.WRONG
    return Score(
        value=found.rate,
        outcome=outcome if found.edits else Outcome.CORRECT,
        answer=normalize_transcript(answer),
        parts={
            EDITS: float(found.edits),
            WORDS: float(found.words),
            HITS: float(found.hits),
            SUBSTITUTIONS: float(found.substitutions),
            DELETIONS: float(found.deletions),
            INSERTIONS: float(found.insertions),
        },
    )


@lru_cache(maxsize=1)
def package() -> Callable[[str, str], Any]:
    """Return jiwer's function. Raises PlanError if the optional package is not installed."""
    try:
        from jiwer import process_words
    except ImportError as error:
        raise PlanError("word errors need the package jiwer", hint=install_hint("media")) from error
    return process_words
