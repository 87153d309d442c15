"""Simulate a search to tell beforehand how many tests it is going to need."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

from serve_eval.stats.noisy_search import ErrorRates, Posterior
from serve_eval.stats.suspects import SearchSpace

SEARCHES = 200
"""Number of simulated searches."""

Results = tuple[tuple[int, bool], ...]
"""The tests of a search so far: the configuration, and True for "worse"."""


@dataclass(frozen=True, slots=True, kw_only=True)
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
