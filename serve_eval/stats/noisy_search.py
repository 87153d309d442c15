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
"""

from __future__ import annotations

import copy
import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from serve_eval.frozen import freeze
from serve_eval.stats.inputs import check_level
from serve_eval.stats.suspects import SearchSpace, Suspect

if TYPE_CHECKING:
    from serve_eval.stats.inputs import FloatArray


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
