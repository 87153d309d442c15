"""The answer has certain words: a point for each entry, of which any of its synonyms (`dose|dosage`) will do."""

from __future__ import annotations

import re
from functools import lru_cache

from serve_eval.schema import Response, Score, Scorer
from serve_eval.scorers._expected import WORDS, is_text, items_of, kind, place, placed, scoring_nothing
from serve_eval.scorers._graded import FULL, graded


def scorer(*, ignore_case: bool = True, whole_words: bool = False) -> Scorer:
    """The points by the number of entries. An entry may stand within a longer word, as in BioChatter, unless
    `whole_words` says otherwise."""

    def score(expected: object, response: Response) -> Score:
        entries = items_of(expected, WORDS)
        matches = [_pattern(str(entry), ignore_case, whole_words).search(response.text) for entry in entries]
        found = [match.group() for match in matches if match]
        value = len(found) / len(entries)
        mode = "words missing" if found else "all words missing"
        return graded(value, "; ".join(found), {FULL: float(value == 1.0)}, mode=mode)

    def problems(expected: object) -> list[str]:
        if not items_of(expected, WORDS):
            return [f"{place(expected, WORDS)} is an empty list: write words, such as [aspirin, dose|dosage]"]
        return [
            f"{where} must be a word, or synonyms such as dose|dosage, and is {kind(entry)}"
            for where, entry in placed(expected, WORDS)
            if not is_text(entry) or not _synonyms(str(entry))
        ]

    def answers(expected: object) -> tuple[str, str]:
        right = ", ".join(_synonyms(str(entry))[0] for entry in items_of(expected, WORDS))
        return right, scoring_nothing(lambda text: score(expected, Response(text=text, finish_reason="stop")))

    return Scorer(version=1, score=score, answers=answers, problems=problems, scoring="inline")


def _synonyms(entry: str) -> list[str]:
    return [synonym for each in entry.split("|") if (synonym := each.strip())]


@lru_cache(maxsize=4096)
def _pattern(entry: str, ignore_case: bool, whole_words: bool) -> re.Pattern[str]:
    either = "|".join(re.escape(synonym) for synonym in _synonyms(entry))
    return re.compile(rf"(?<!\w)(?:{either})(?!\w)" if whole_words else either, re.IGNORECASE if ignore_case else 0)
