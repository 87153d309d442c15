"""Compare the distances of answers to probes with the floor by which healthy servers differ.

A floor has one of three origins. One that the user *gave* is the largest distance of healthy
numerics. One that siblings *measured* is the largest of almost all of their distances, and a
healthy server may be TIMES as far away. One that is *unknown* accuses nobody of other numerics: no
sibling was there, or all of them answer as replicas do, which says nothing of other kernels.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from serve_eval.errors import NotComparableError
from serve_eval.frozen import freeze
from serve_eval.schema import (
    IdentityReading,
    Probe,
    ProbeDistance,
    ProbeReading,
    TokenReading,
    Verification,
    VerificationReference,
)
from serve_eval.stats.distances import log_evidence_above

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
            found.append((place, *compare_tokens(one, other)))
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


def compare_tokens(a: TokenReading, b: TokenReading) -> tuple[float, bool]:
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


def find_step(readings: Sequence[ProbeReading | IdentityReading]) -> float:
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


FAR_NATS = 0.5
"""Distance, in nats, that no numerics explain. A fault of few requests shows in such hits."""
MARGIN = 1.5
"""Factor from the largest distance of a few repetitions to the largest one of many."""
FLOORS = 3.0
TIMES = 2.0
"""Factor by which a healthy server may be further away than its siblings."""
LEAST_FLOOR = 0.02
"""Floor, in nats, below which siblings measure nothing. Engines that were measured with other
kernels have largest distances of .2, so siblings below it are replicas of one build."""


@freeze
class DistanceLimits:
    """The limits of distances, in nats. `floor` is None if nobody measured or gave it.

    `measured`: siblings measured it, and `typical` is the median of their distances.
    """

    noise: float
    step: float
    floor: float | None
    measured: bool = False
    typical: float = 0.0

    @property
    def beyond_noise(self) -> float:
        """The largest distance that the noise and the rounding explain."""
        return max(MARGIN * self.noise, self.step)

    @property
    def known(self) -> bool:
        """True if a server can differ from the floor: it was given, or the siblings measured it.

        Siblings measure it if they differ at all, and by LEAST_FLOOR or more; noise of the
        reference's server counts as such a difference.
        """
        if self.floor is None or not self.measured:
            return self.floor is not None
        return self.typical > 0.0 and max(self.floor, self.beyond_noise) >= LEAST_FLOOR

    @property
    def beyond_floor(self) -> float:
        """The largest distance that healthy numerics explain; infinite if unknown."""
        if self.floor is None or not self.known:
            return math.inf
        return max(self.floor * (TIMES if self.measured else 1.0), self.beyond_noise)

    @property
    def beyond_floors(self) -> float:
        """The distance of a large fault: FLOORS times the floor; infinite if unknown."""
        if self.floor is None or not self.known:
            return math.inf
        return FLOORS * max(self.floor, self.beyond_noise)

    @property
    def far(self) -> float:
        """The distance that only a fault explains, if healthy servers have no such answers.

        If siblings are compared, their answers show whether healthy servers have them.
        """
        given = self.known and not self.measured
        return max(FAR_NATS, self.beyond_floors if given else FLOORS * self.beyond_noise)

    @property
    def far_alone(self) -> float:
        """The distance that only a fault explains where no sibling answers the same probes."""
        return max(self.far, self.beyond_floors)

    @property
    def far_sibling(self) -> float:
        """The distance of a sibling from which a healthy server could be far away."""
        return self.far / TIMES

    def exceeds_siblings(self, nats: float, siblings: tuple[float, ...]) -> bool:
        """Return True for an answer more than TIMES as far away as those of all siblings."""
        return nats > max(TIMES * max(siblings), LEAST_FLOOR, self.beyond_noise)


ALLOWED, ALLOWED_FAR = 0.05, 0.01
"""Shares of probes beyond a given floor, and far beyond it, that healthy servers may have."""


def weigh_probes(asked: int, beyond_floor: int, far: int) -> float:
    """Return the natural logarithm of the evidence that a server is another one.

    Of `asked` probes, `beyond_floor` lie beyond the floor and `far` of them far beyond it. The
    evidence is the mean of that against ALLOWED and that against ALLOWED_FAR.
    """
    bets = (
        log_evidence_above(beyond_floor, asked - beyond_floor, ALLOWED),
        log_evidence_above(far, asked - far, ALLOWED_FAR),
    )
    top = max(bets)
    return top + math.log(sum(math.exp(bet - top) for bet in bets) / len(bets))


COVERED_ALPHA = 0.05
"""Probability with which more than ALLOWED of a sibling's probes lie beyond its floor."""
LARGEST_FLOOR = GONE / FLOORS
"""Nats that a floor must stay below, since no distance exceeds three such floors."""


def is_measured(distance: ProbeDistance) -> bool:
    """Return True for a difference of two listed log-probabilities.

    An answer without tokens, without log-probabilities, or without the token in its list has a
    distance that only stands for one. It counts against a server, and says nothing of numerics.
    """
    return not (distance.at_least or distance.texts_only) and distance.nats < GONE


def keep_measured(found: Iterable[ProbeDistance | None]) -> list[float]:
    """Return the distances that were measured, in nats."""
    return [one.nats for one in found if one is not None and is_measured(one)]


def count_unmeasured(found: Iterable[ProbeDistance | None]) -> int:
    """Return the number of answers whose distance was not measured."""
    return sum(one is None or not is_measured(one) for one in found)


def find_floor(nats: Sequence[float]) -> float:
    """Return the floor that measured distances show, in nats; 0 without any.

    It is the upper tolerance limit of a share of 1 - ALLOWED, with confidence 1 - COVERED_ALPHA:
    the largest distance of up to 92 probes, the second largest of up to 123, and so on. No probe
    sets it alone: it is at most three times the next smaller distance.
    Source: Wilks, "Determination of sample sizes for setting tolerance limits", 1941.
    """
    if not nats:
        return 0.0
    ordered = sorted(nats, reverse=True)
    return _bound_by_next(ordered[_count_beyond(len(nats)) :])


def _bound_by_next(ordered: Sequence[float], least: float = 0.0) -> float:
    """Return the first of falling distances, or three times the second or `least` if smaller.

    0 without any. A single distance is returned as it is.
    """
    if len(ordered) < 2:
        return ordered[0] if ordered else 0.0
    return min(ordered[0], max(least, FLOORS * ordered[1]))


def _count_beyond(probes: int) -> int:
    """Return how many of the largest distances lie beyond the floor."""
    below, beyond = 0.0, 0
    while beyond < probes:
        below += math.comb(probes, beyond) * ALLOWED**beyond * (1 - ALLOWED) ** (probes - beyond)
        if below > COVERED_ALPHA:
            break
        beyond += 1
    return max(0, beyond - 1)


def measure_noise(probes: Sequence[Probe]) -> float:
    """Return what the reference's server differs by from itself, in nats.

    That is the largest measured distance of its probes. Beyond CLEAR_GAP it is at most three times
    that of the next probe.
    """
    found = []
    for probe in probes:
        again = (measure_distance(probe.id, probe.reading, one.reading) for one in probe.again)
        if measured := keep_measured(again):
            found.append(max(measured))
    return _bound_by_next(sorted(found, reverse=True), CLEAR_GAP)


def measure_siblings(probes: Sequence[Probe]) -> tuple[float, float] | None:
    """Return the floor and the median distance of all siblings, in nats; None without one.

    The floor is that of the furthest sibling.
    """
    places = max((1 + len(probe.siblings) for probe in probes), default=1)
    each = [keep_measured(_distances_of(probes, place)) for place in range(places)]
    if not any(each):
        return None
    return max(map(find_floor, each)), statistics.median([one for found in each for one in found])


def _distances_of(probes: Sequence[Probe], place: int) -> Iterator[ProbeDistance | None]:
    for probe in probes:
        readings = (probe.sibling, *probe.siblings)
        if place < len(readings) and (reading := readings[place]) is not None:
            yield measure_distance(probe.id, probe.reading, reading)


def sibling_distances(probes: Sequence[Probe]) -> Iterator[ProbeDistance | None]:
    """Yield the distance of each answer of a sibling; None if nothing was comparable."""
    for probe in probes:
        for reading in probe.healthy:
            yield measure_distance(probe.id, probe.reading, reading)


def limits_of(known: VerificationReference | Verification) -> DistanceLimits:
    """Return the limits of a reference, or those by which a result was judged."""
    if isinstance(known, Verification):
        measured, typical = known.floor_measured, known.sibling_median
    else:
        measured, typical = known.measured, known.median
    return DistanceLimits(
        noise=known.noise,
        step=known.step,
        floor=known.floor,
        measured=measured,
        typical=typical or 0.0,
    )


def compare_siblings(probe: Probe, distance: ProbeDistance) -> tuple[float, ...]:
    """Return how far the siblings are away at a probe, as `distance` measures it, in nats.

    A distance of texts alone is compared with that of the siblings' texts.
    """
    found = (
        measure_distance(
            probe.id,
            probe.reading,
            msgspec.structs.replace(one, tokens=()) if distance.texts_only else one,
        )
        for one in probe.healthy
    )
    if distance.texts_only:
        return tuple(one.nats for one in found if one is not None and one.texts_only)
    return tuple(keep_measured(found))


def check_floor(known: VerificationReference, about: str) -> None:
    """Raise NotComparableError if no distance can exceed the limits. `about` begins the message."""
    limits = limits_of(known)
    if max(limits.beyond_noise, known.floor or 0.0) < LARGEST_FLOOR:
        return
    measured = measure_siblings(known.probes)
    usable = measured is not None and measured[0] < LARGEST_FLOOR
    told = f" Its sibling's answers measure {measured[0]:.3g} nat." if measured and usable else ""
    what = "floor" if limits.beyond_noise < LARGEST_FLOOR else "noise"
    size = known.floor if what == "floor" else known.noise
    raise NotComparableError(
        f"{about}: a {what} of {size:.3g} nat: no answer can be so far away that it counts as"
        f" another model's (a floor must be below {LARGEST_FLOOR:.3g})",
        hint=f"Register the reference again, with a healthy sibling, or give --floor NATS.{told}"
        if what == "floor"
        else "Register the reference again, with a server that repeats its answers.",
    )
