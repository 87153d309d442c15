"""Summarize where the different texts of two runs part."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator

from serve_eval.evidence.agreement.all_answers import pair_runs
from serve_eval.evidence.agreement.answer_pairs import TaskAnswers, texts
from serve_eval.schema import TextPlaces
from serve_eval.stats.common_prefix import common_prefix


def find_text_places(a: TaskAnswers, b: TaskAnswers) -> TextPlaces | None:
    """Return where the answers of two runs part, repeat by repeat, or None if no text differs.

    Raises RunFolderError for journals that cannot be read.
    """
    return measure_places(_list_parted(a, b))


def _list_parted(a: TaskAnswers, b: TaskAnswers) -> Iterator[tuple[str, str]]:
    """Yield the texts of the answers that differ."""
    for one, other in pair_runs(a, b):
        first, second = a.said[one], b.said[other]
        changed = [prompt for prompt, said in first.items() if second.get(prompt, said) != said]
        if changed:
            before, after = texts(a, changed, one), texts(b, changed, other)
            yield from ((before[p], after[p]) for p in changed if p in before and p in after)


def measure_places(pairs: Iterable[tuple[str, str]]) -> TextPlaces | None:
    """Summarize the first differing characters of pairs of texts; equal ones do not count. Pure."""
    found = [
        (place := common_prefix(one, other), place / max(len(one), len(other)))
        for one, other in pairs
        if one != other
    ]
    if not found:
        return None
    places, shares = zip(*found, strict=True)
    return TextPlaces(
        texts=len(places),
        at_start=places.count(0),
        median_character=float(statistics.median(places)),
        median_share=float(statistics.median(shares)),
    )
