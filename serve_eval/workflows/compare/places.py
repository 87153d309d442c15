"""Summarize the places at which flips first differ, and read the summary if it is clear.

A fault before the first token is generated (the prompt, its cache) shows at token 0. A fault that
begins later shows later, and the numerics of a sound pair differ anywhere.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from serve_eval.evidence.agreement.answer_texts import BAR, RANGES, is_clear, name_range
from serve_eval.schema import Divergence, DivergencePlaces, Flip

LEAST_EXAMINED = 3
"""Flips with a result that a summary needs."""
LEAST_OVERRULED = 2
"""Flips in which one side must be overruled; two thirds of the examined ones must be, too."""
SHORT_ANSWER = 16
"""Characters of an extracted answer beyond which texts may well part inside it."""
SAME, UNKNOWN = "same again", "unknown"


def find_places(flips: Sequence[Flip]) -> DivergencePlaces | None:
    """Return where the examined flips first differ; None if too few gave a result."""
    examined = [(flip, flip.divergence) for flip in flips if flip.divergence is not None]
    counts = Counter(_range(one) for _, one in examined)
    if len(examined) - counts[UNKNOWN] < LEAST_EXAMINED:
        return None
    sure = Counter(_range(one) for _, one in examined if one.kind == "confident")
    (side, times), *_ = Counter(one.overruled for _, one in examined).most_common(1)
    overruled = side if 3 * times >= 2 * len(examined) and times >= LEAST_OVERRULED else None
    return DivergencePlaces(
        counts={place: counts[place] for place in (*RANGES, SAME, UNKNOWN)},
        confident={place: sure[place] for place in RANGES},
        reading=phrase_overruled(overruled, times, len(examined)) if overruled else _read(examined),
        overruled=overruled,
    )


def draw_places(places: DivergencePlaces) -> Iterator[str]:
    """Yield the lines of a histogram, at most 80 columns wide."""
    filled = [place for place in RANGES if places.counts.get(place)]
    shown = [*RANGES[: RANGES.index(filled[-1]) + 1 if filled else 0]]
    shown += [place for place in (SAME, UNKNOWN) if places.counts.get(place)]
    scale = max(1.0, max(places.counts.values(), default=0) / BAR)
    for place in shown:
        count, sure = places.counts.get(place, 0), places.confident.get(place, 0)
        length, dark = round(count / scale), round(sure / scale)
        name = place if place in (SAME, UNKNOWN) else f"token{'s' * (place != '0')} {place}"
        bar = "#" * dark + "." * (length - dark)
        yield f"  {name:<13} {count:>5}  {bar}".rstrip()


def _range(one: Divergence) -> str:
    if one.token is None:
        return SAME if one.kind == SAME else UNKNOWN
    return name_range(one.token)


def _read(examined: Sequence[tuple[Flip, Divergence]]) -> str:
    """Return the sentence about a token at which most flips differ, or an empty text.

    After token 0, flips whose answers begin alike count once: a form of the answers that all share,
    such as "The answer is", also brings them to the same token.
    """
    sure = [
        (one.token, flip)
        for flip, one in examined
        if one.kind == "confident" and one.token is not None and not _parts_in_answer(flip)
    ]
    unlike = {(token, _beginning(flip) if token else flip.id) for token, flip in sure}
    for token, alike in Counter(token for token, _ in unlike).most_common(1):
        if is_clear(alike, len(examined)):
            return _phrase(token, sum(one == token for one, _ in sure), len(examined))
    return ""


def phrase_overruled(side: str, times: int, examined: int) -> str:
    """Return the sentence about an endpoint that does not write its likeliest tokens."""
    return (
        f"in {times} of {examined} flips {side} writes a token that it ranks below another, with"
        f" the log-probabilities of {'B' if side == 'A' else 'A'}: {side} adds a penalty, a bias or"
        " a temperature (generation_config.json), and weights, cache and prompt are the same"
    )


def _phrase(token: int, alike: int, examined: int) -> str:
    if token == 0:
        return (
            f"the first token already differs in {alike} of {examined} flips: look at the prompt"
            " and its KV cache (template, prefix, transfer)"
        )
    where = (
        "the first step of generation (the KV cache that a generation server received)"
        if token == 1
        else "the step that begins there (speculation, a new cache block, a limit of tokens)"
    )
    return f"{alike} of {examined} flips first differ at token {token}: look at {where}"


def _beginning(flip: Flip) -> str:
    """Return the text of A up to the first difference."""
    place = flip.first_difference
    return flip.texts[0] if place is None else flip.texts[0][: place.character]


def _parts_in_answer(flip: Flip) -> bool:
    """Return True if the texts part where both have a short extracted answer.

    Flips differ there at the latest, whatever the fault.
    """
    if flip.first_difference is None:
        return False
    place = flip.first_difference.character
    return all(
        answer is not None and _stands_at(place, answer.lower(), text.lower())
        for text, answer in zip(flip.texts, flip.answers, strict=True)
    )


def _stands_at(place: int, answer: str, text: str) -> bool:
    if not 0 < len(answer) <= SHORT_ANSWER:
        return False
    start = text.find(answer, max(0, place - len(answer) + 1))
    return start >= 0 and not text[place:start].strip()
