"""Hypotheses about what breaks a configuration, and the configurations that can tell them apart.

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

import itertools
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Literal

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
