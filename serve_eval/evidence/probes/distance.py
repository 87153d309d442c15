"""Measure how far two answers to a probe are from each other, in nats. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from serve_eval.schema import ProbeDistance, ProbeReading, TokenReading

GONE = 20.0
"""Distance of an answer that ends at once: the expected token has a probability of about 0."""
CLEAR_GAP = 0.15
"""Nats between the two likeliest tokens above which no healthy server was seen to choose the other
one. Without log-probabilities only such flips count."""


def measure_distance(probe: str, a: ProbeReading, b: ProbeReading) -> ProbeDistance | None:
    """Return the distance of `b` from `a`, whose likeliest tokens are compared.

    The second tokens are compared only after equal first ones. Returns None if the lists have no
    token in common: then nothing was measured.
    """
    if a.tokens and not b.tokens:
        return _compare_texts(probe, a, b)
    found = list[tuple[int, float, bool]]()
    flipped = False
    for place in (0, 1):
        one, other = _find(a, place), _find(b, place)
        if one is not None and other is not None:
            found.append((place, *_compare_tokens(one, other)))
            flipped = one.text != other.text
        if flipped or (place == 0 and not _begin_alike(a, b)):
            break
    if not found:
        return None
    place, nats, at_least = max(found, key=lambda one: one[1])
    by_place = {one: value for one, value, _ in found}
    return ProbeDistance(
        probe=probe,
        nats=nats,
        token=place,
        at_least=at_least,
        flipped=flipped,
        first_nats=by_place.get(0, 0.0),
        second_nats=by_place.get(1),
    )


def _compare_texts(probe: str, a: ProbeReading, b: ProbeReading) -> ProbeDistance | None:
    """Compare with an answer that lists no tokens."""
    if not b.text:
        return ProbeDistance(probe=probe, nats=GONE, at_least=True, flipped=True, first_nats=GONE)
    first = _find(a, 0)
    if first is None or not first.text:
        return None
    flipped = not b.text.startswith(first.text)
    gap = _gap(first)
    nats = gap if flipped and gap > CLEAR_GAP else 0.0
    return ProbeDistance(
        probe=probe, nats=nats, at_least=True, texts_only=True, flipped=flipped, first_nats=nats
    )


def _find(reading: ProbeReading, place: int) -> TokenReading | None:
    """Return the token at a place of the answer; None if it is not in the list."""
    index = place - reading.skipped
    return reading.tokens[index] if 0 <= index < len(reading.tokens) else None


def _begin_alike(a: ProbeReading, b: ProbeReading) -> bool:
    """Return True if the first tokens are equal, by their texts or by those of the answers."""
    one, other = _find(a, 0), _find(b, 0)
    if one is not None and other is not None:
        return one.text == other.text
    known = one or other
    if known is None:
        return a.text == b.text
    return (b if other is None else a).text.startswith(known.text)


def _compare_tokens(a: TokenReading, b: TokenReading) -> tuple[float, bool]:
    """Return the distance of two tokens at one place, and True if that is a lower bound."""
    top_a, top_b = {**a.top, a.text: a.logprob}, {**b.top, b.text: b.logprob}
    token = max(top_a, key=lambda text: top_a[text])
    if token in top_b:
        return abs(top_a[token] - top_b[token]), False
    # It is less likely there than each token of the list.
    return max(0.0, top_a[token] - min(top_b.values())), True


def _gap(token: TokenReading) -> float:
    """Return by how many nats the chosen token is likelier than the next one."""
    others = [value for text, value in token.top.items() if text != token.text]
    return token.logprob - max(others, default=token.logprob)


def find_step(readings: Sequence[ProbeReading]) -> float:
    """Return the step of a server's log-probabilities: 10 to the power of minus its decimals.

    0 for more than six decimals, which is finer than any numerics that count.
    """
    values = [
        value for reading in readings for token in reading.tokens for value in token.top.values()
    ]
    for decimals in range(7):
        step = 10.0**-decimals
        if values and all(abs(value - round(value, decimals)) < step * 1e-6 for value in values):
            return step
    return 0.0
