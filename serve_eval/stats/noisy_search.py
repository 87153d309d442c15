"""Search for a culprit by tests that err, and predict the number of tests.

A test of a configuration says "worse" or "same". It says "worse" of one that does not fail with
probability `alpha` at most, and "same" of one that fails with probability `beta` at most. Both are
taken at their bounds, so that the evidence of a test is never overstated. A test that decides
nothing is no evidence.

The next configuration is the one whose result is expected to tell most about the suspects: its
expected information (Lindley 1956, "On a measure of the information provided by an experiment",
Ann. Math. Stat. 27). For steps in a row this is noisy binary search (Horstein 1963; Burnashev and
Zigangirov 1974; Ben-Or and Hassidim 2008), for options noisy group testing (Atia and Saligrama
2012, "Boolean compressed sensing and noisy group testing", IEEE Trans. Inf. Theory 58).

No configuration is tested twice: a second test asks the same prompts and shares their errors, so it
would not be the independent evidence that the posterior assumes.

With n options, a configuration is a set of them: bit i of its number is set if option i has the
value of the bad side. With n steps in a row, a configuration is the number of a step, 0 the good
one.

The hypotheses about options are: a set of them fails only together (a set of one is a single
option), or either of two fails alone. A set with more members is less likely beforehand. About
steps: everything fails from one step on. Three more hypotheses are always there: nothing fails;
everything fails, also the good configuration if it is asked again; and the results follow no rule
of this kind. The last one keeps a contradiction from being explained by a wrong culprit.

Up to `EVERY_SET` options, all sets are hypotheses and all configurations can be chosen. Beyond,
sets have at most two members or all options (three up to `TRIPLES_UP_TO`), and configurations come
from a seeded draw. Finding few members among many by tests of groups is group testing: Dorfman
1943, "The detection of defective members of large populations", Ann. Math. Stat. 14.
"""

from __future__ import annotations

import copy
import itertools
import math
import random
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

from serve_eval.frozen import freeze
from serve_eval.stats.inputs import check_level

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray

SuspectKind = Literal["none", "outside", "other", "together", "either", "from"]

NOTHING, OUTSIDE, OTHER = 0.20, 0.06, 0.01
"""Probabilities, before any test, that nothing fails, that everything does, and of no rule."""
SINGLE, PAIR, EITHER = 0.50, 0.14, 0.08
"""The same for single options, pairs that fail only together, and two that fail alone, each shared
among all of its kind. A further member divides the probability of a set by `LESS`."""
LESS = 4.0
EVERY_SET, TRIPLES_UP_TO = 8, 16
"""Numbers of options up to which every set and every set of three is a hypothesis."""
DRAWN = 400
"""Number of drawn configurations beyond `EVERY_SET` options."""


@dataclass(frozen=True, slots=True)
class Suspect:
    """A hypothesis: its kind, the options or the step it blames, and its prior probability."""

    kind: SuspectKind
    members: tuple[int, ...]
    prior: float

    def fails(self, configuration: int, *, ordered: bool) -> float:
        """Return 1 if the configuration fails under this hypothesis, 0 if not, 0.5 if unknown."""
        if self.kind in ("none", "outside", "other"):
            return {"none": 0.0, "outside": 1.0, "other": 0.5}[self.kind]
        if ordered:
            return float(configuration >= self.members[0])
        on = [bool(configuration >> member & 1) for member in self.members]
        return float(any(on) if self.kind == "either" else all(on))


@dataclass(frozen=True)
class SearchSpace:
    """The suspects, and the configurations that may be tested.

    `size` counts options, or the steps after the good one if `ordered`. `bad` is the configuration
    of the bad side; that of the good side is 0.
    """

    suspects: tuple[Suspect, ...]
    configurations: tuple[int, ...]
    size: int
    ordered: bool

    @property
    def bad(self) -> int:
        """The configuration of the bad side."""
        return self.size if self.ordered else (1 << self.size) - 1

    @cached_property
    def places(self) -> dict[int, int]:
        """The column of each configuration."""
        return {one: place for place, one in enumerate(self.configurations)}

    @cached_property
    def fails(self) -> FloatArray:
        """A row per suspect and a column per configuration: see `Suspect.fails`."""
        import numpy

        found = numpy.array(
            [
                [suspect.fails(one, ordered=self.ordered) for one in self.configurations]
                for suspect in self.suspects
            ]
        )
        # A failure without a rule still is one: of the bad side, nothing else would be searched.
        found[[one.kind == "other" for one in self.suspects], self.places[self.bad]] = 1.0
        return found

    @cached_property
    def priors(self) -> FloatArray:
        """The prior probabilities, which sum to 1."""
        import numpy

        given = numpy.array([suspect.prior for suspect in self.suspects])
        shares: FloatArray = given / given.sum()
        return shares


def space_of_options(count: int, *, seed: int = 0) -> SearchSpace:
    """Return the search space of `count` options; 0 is allowed, for two equal sides."""
    suspects = [*_always(), *_sets(count)]
    pairs = list(itertools.combinations(range(count), 2))
    suspects += [Suspect("either", pair, EITHER / len(pairs)) for pair in pairs]
    every = count <= EVERY_SET
    numbers = range(1 << count) if every else _draw_configurations(count, seed)
    in_order = sorted(set(numbers), key=lambda number: (number.bit_count(), number))
    return SearchSpace(tuple(suspects), tuple(in_order), count, ordered=False)


def space_of_steps(count: int) -> SearchSpace:
    """Return the search space of `count` steps after the good one."""
    share = (1.0 - NOTHING - OUTSIDE - OTHER) / max(count, 1)
    steps = [Suspect("from", (step,), share) for step in range(1, count + 1)]
    return SearchSpace((*_always(), *steps), tuple(range(count + 1)), count, ordered=True)


def start_chances(
    space: SearchSpace, started: Sequence[int], failed: Sequence[int]
) -> Sequence[float]:
    """Return, for each configuration, a guess of the chance that it starts.

    Configurations of which some could not start are likely to have a neighbour that cannot either.
    Of steps, these are the steps nearby. Of options, those that share a combination "this one on,
    that one off" that no started configuration has. The guess only guides the choice: it changes no
    posterior.
    """
    if not failed:
        return [1.0] * len(space.configurations)
    if space.ordered:
        return [
            1.0 - max(0.5 ** abs(one - bad) for bad in failed) if one not in started else 1.0
            for one in space.configurations
        ]
    causes = [_combinations(bad, space.size) for bad in failed]
    for one in started:
        good = _combinations(one, space.size)
        causes = [found - good for found in causes]
    return [_start_chance(_combinations(one, space.size), causes) for one in space.configurations]


def _start_chance(here: set[tuple[int, int]], causes: Sequence[set[tuple[int, int]]]) -> float:
    shared = [len(found & here) / len(found) for found in causes if found]
    return 1.0 - 0.9 * max(shared, default=0.0)


def _combinations(configuration: int, count: int) -> set[tuple[int, int]]:
    on = [i for i in range(count) if configuration >> i & 1]
    off = [i for i in range(count) if not configuration >> i & 1]
    return set(itertools.product(on, off))


def _always() -> tuple[Suspect, ...]:
    return (
        Suspect("none", (), NOTHING),
        Suspect("outside", (), OUTSIDE),
        Suspect("other", (), OTHER),
    )


def _sets(count: int) -> Iterator[Suspect]:
    """Yield the sets that fail only together."""
    largest = count if count <= EVERY_SET else 3 if count <= TRIPLES_UP_TO else 2
    sizes = dict.fromkeys((*range(1, largest + 1), *([count] if count else [])))
    for size in sizes:
        total = SINGLE if size == 1 else PAIR / LESS ** min(size - 2, 4)
        members = list(itertools.combinations(range(count), size))
        yield from (Suspect("together", one, total / len(members)) for one in members)


def _draw_configurations(count: int, seed: int) -> Iterator[int]:
    """Yield the configurations that are always useful, and drawn ones of all sizes."""
    full = (1 << count) - 1
    yield from (0, full)
    for i in range(count):
        yield from (1 << i, full ^ 1 << i, (1 << i) - 1, full ^ (1 << i) - 1)
    drawing = random.Random(seed)
    for _ in range(DRAWN):
        size = drawing.randrange(1, count)
        yield sum(1 << i for i in drawing.sample(range(count), size))


LEAST_BITS = 0.005
"""Expected information, in bits, below which a further test is not worth a start."""
AS_GOOD = 0.9
"""Share of the largest expected information with which a configuration is preferred if it needs no
start."""


@freeze
class ErrorRates:
    """The largest error rates of a test.

    `alpha`: it says "worse" of a configuration that does not fail. `beta`: it says "same" of one
    that fails. Raises ServeEvalError unless both are between 0 and 1/2.
    """

    alpha: float
    beta: float

    def __post_init__(self) -> None:
        for name, rate in (("alpha", self.alpha), ("beta", self.beta)):
            check_level(name, 2.0 * rate)


class Posterior:
    """The probability of every suspect, given the results so far."""

    def __init__(self, space: SearchSpace, rates: ErrorRates) -> None:
        import numpy

        self.space, self.rates = space, rates
        self._log = numpy.log(space.priors)
        # P("worse") by suspect and configuration. If it is unknown whether one fails, a coin
        # decides.
        self._worse = space.fails * (1.0 - rates.beta) + (1.0 - space.fails) * rates.alpha
        self._worse[space.fails == 0.5] = 0.5
        self._spread = _entropy(self._worse)

    def after(self, configuration: int, *, worse: bool) -> Posterior:
        """Return a further posterior, with the result of one more test."""
        found = copy.copy(self)
        found.update(configuration, worse=worse)
        return found

    def update(self, configuration: int, *, worse: bool) -> None:
        """Add the result of a test."""
        import numpy

        column = self._worse[:, self.space.places[configuration]]
        self._log = self._log + numpy.log(column if worse else 1.0 - column)
        self._log -= self._log.max()

    @property
    def probabilities(self) -> FloatArray:
        """The posterior of each suspect, in their order; the sum is 1."""
        import numpy

        weights = numpy.exp(self._log)
        shares: FloatArray = weights / weights.sum()
        return shares

    @property
    def leading(self) -> tuple[Suspect, float]:
        """The most probable suspect and its probability; of equal ones, the first."""
        import numpy

        found = self.probabilities
        place = int(numpy.argmax(found))
        return self.space.suspects[place], float(found[place])

    def information(self) -> FloatArray:
        """Return the expected information of a test of each configuration, in bits.

        It is the entropy of the result, less that which remains if the suspect is known.
        """
        found = self.probabilities
        result: FloatArray = _entropy(found @ self._worse) - found @ self._spread
        return result

    def choose(
        self,
        *,
        tested: Collection[int],
        chances: Sequence[float],
        running: Collection[int] = (),
    ) -> int | None:
        """Return the configuration to test next, or None if no further test would tell enough.

        `tested` are left out. `chances` are the chances that each configuration starts, by which
        its information counts. A configuration of `running` needs no start, and is preferred if it
        tells about as much. Of equal ones, the first is chosen, which has the fewest options of the
        bad side.
        """
        import numpy

        worth = numpy.round(self.information() * numpy.asarray(chances), 12)
        for one in tested:
            worth[self.space.places[one]] = -1.0
        best = float(worth.max(initial=-1.0))
        if best < LEAST_BITS:
            return None
        places = [self.space.places[one] for one in running]
        held = [place for place in places if worth[place] >= AS_GOOD * best]
        return self.space.configurations[held[0] if held else int(numpy.argmax(worth))]


def _entropy(chance: FloatArray) -> FloatArray:
    """Return the entropy of events with these probabilities, in bits."""
    import numpy

    other = 1.0 - chance
    with numpy.errstate(divide="ignore", invalid="ignore"):
        bits = -(chance * numpy.log(chance) + other * numpy.log(other)) / math.log(2.0)
    found: FloatArray = numpy.nan_to_num(bits, nan=0.0)
    return found


SEARCHES = 200
"""Number of simulated searches."""

Results = tuple[tuple[int, bool], ...]
"""The tests of a search so far: the configuration, and True for "worse"."""


@freeze
class SearchCost:
    """The tests of simulated searches, the first of which is that of the bad side.

    `mean` and `most` count tests if the bad side fails; `most` is enough for 19 of 20 searches.
    `found` is the share of these searches that end with the true suspect, which has no rule in some
    of them.
    """

    mean: float
    most: int
    found: float


class SimulatedSearch:
    """Searches in one space, each of which ends at the posterior `confidence`.

    Equal results lead to the same next configuration, so choices are remembered.
    """

    def __init__(self, space: SearchSpace, rates: ErrorRates, confidence: float) -> None:
        self._space, self._rates, self._confidence = space, rates, confidence
        self._known: dict[Results, tuple[int | None, Posterior]] = {}

    def choose(self, results: Results) -> int | None:
        """Return the configuration after these results, or None at the end."""
        return self._look(results)[0]

    def measure(self, seed: int = 0) -> SearchCost:
        """Return the cost over suspects drawn from their priors under which the bad side fails."""
        drawing = random.Random(seed)
        suspects, priors = self._space.suspects, list(self._space.priors)
        place = self._space.places[self._space.bad]
        weights = [p * f for p, f in zip(priors, self._space.fails[:, place], strict=True)]
        counts: Counter[int] = Counter()
        found = 0
        for truth in drawing.choices(range(len(suspects)), weights, k=SEARCHES):
            results: Results = ()
            while (configuration := self.choose(results)) is not None:
                fails = float(self._space.fails[truth, self._space.places[configuration]])
                results = (*results, (configuration, self._draw(fails, drawing)))
            counts[len(results)] += 1
            found += self._look(results)[1].leading[0] is suspects[truth]
        lengths = sorted(counts.elements())
        return SearchCost(
            mean=sum(lengths) / SEARCHES,
            most=lengths[int(0.95 * SEARCHES) - 1],
            found=found / SEARCHES,
        )

    def _draw(self, fails: float, drawing: random.Random) -> bool:
        rates = self._rates
        worse = fails if fails == 0.5 else 1.0 - rates.beta if fails else rates.alpha
        return drawing.random() < worse

    def _look(self, results: Results) -> tuple[int | None, Posterior]:
        if results not in self._known:
            if not results:
                self._known[results] = self._space.bad, Posterior(self._space, self._rates)
            else:
                configuration, worse = results[-1]
                posterior = self._look(results[:-1])[1].after(configuration, worse=worse)
                self._known[results] = self._follow(results, posterior), posterior
        return self._known[results]

    def _follow(self, results: Results, posterior: Posterior) -> int | None:
        if posterior.leading[1] > self._confidence:
            return None
        chances = [1.0] * len(self._space.configurations)
        return posterior.choose(tested={c for c, _ in results}, chances=chances)
