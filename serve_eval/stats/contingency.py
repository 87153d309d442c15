"""Which of several workers gives more bad answers than the others, from a table worker x answers x
bad.

A test of labels: under "all are alike" the router's choice says nothing of an answer, so that with
the margins of the table fixed the number of bad ones of a worker is hypergeometric (Fisher 1934),
however the answers depend on their prompts. Hard prompts that a router sends to one server more
often than to others break that premise: answers are then compared within groups of prompts that are
alike. In strata, such as these groups, the sum of such numbers (Birch 1964; the strata of the exact
test of Mantel and Haenszel's setting). Where every worker was asked the same prompts with each
partner, all answers of a worker to a prompt are permuted together: at temperature 0 a server may
well say the same with every partner, and what it says once is not evidence as often as it has
partners.

Context and generation workers are told apart by testing those of one role among answers that share
the worker of the other: a bad generation worker then makes no context worker look bad, even where a
router in turns never mixes all of them. What no single worker explains is looked for in pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from serve_eval.errors import ServeEvalError
from serve_eval.stats.multiplicity import holm

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray

CONTEXT, GENERATION, PAIR = "context", "generation", "pair"
ROLES = (CONTEXT, GENERATION)


_Part = tuple[int, "NDArray[numpy.float64]"]
"""A random number: its least value, and the chances of that and of those above it."""


class Cell(NamedTuple):
    """So many answers, of which some were bad, that the same workers had a hand in (None: no worker
    of that role, or one that is not known). Only answers of one `stratum` are compared, such as
    those to a prompt that was asked of all workers; there each worker has one cell with each
    partner. None: of a run, whose router chose. Of a run only answers to prompts of one `group` are
    compared, which the router has no reason to tell apart by how hard they are.
    """

    context: str | None
    generation: str | None
    answers: int
    bad: int
    stratum: Hashable = None
    group: Hashable = None


@dataclass(frozen=True, slots=True)
class TableRow:
    """A worker, or the pair of a context and a generation worker, beside all others of its role."""

    worker: tuple[str, ...]
    role: str
    measure: str
    answers: int
    bad: int
    others: int
    others_bad: int
    p: float
    p_holm: float = 1.0
    accused: bool = False


def no_worse(tables: Iterable[tuple[int, int, int, int]]) -> float:
    """P(at least as many bad answers as were seen | all alike), of tables (answers, bad, others,
    others bad).

    Exact: the distribution of the sum is the convolution of one hypergeometric distribution per
    table. 1 where no table has answers of both sides, some of them bad and some not. Raises
    ServeEvalError for counts that make no table.
    """
    import numpy
    from scipy.special import gammaln

    parts, seen = list[_Part](), 0
    for answers, bad, others, others_bad in tables:
        if not (0 <= bad <= answers and 0 <= others_bad <= others):
            raise ServeEvalError(f"{bad} of {answers} and {others_bad} of {others} make no table")
        total = bad + others_bad
        low, high = max(0, total - others), min(answers, total)
        seen += bad
        k = numpy.arange(low, high + 1, dtype=float)
        # C(answers, k) C(others, total - k), but for a factor
        logs = (
            -gammaln(k + 1)
            - gammaln(answers - k + 1)
            - gammaln(total - k + 1)
            - gammaln(others - total + k + 1)
        )
        one = numpy.exp(logs - logs.max())
        parts.append((low, one / one.sum()))
    return _at_least(seen, parts)


def no_worse_in_blocks(blocks: Iterable[Sequence[int]]) -> float:
    """The same where several workers were asked the same: a block has the number of bad answers of
    each, first that of the one that is tested, and under "all alike" any of these numbers is as
    likely to be its.
    """
    import numpy

    parts, seen = list[_Part](), 0
    for block in blocks:
        low = min(block)
        seen += block[0]
        parts.append((low, numpy.bincount(numpy.array(block) - low) / len(block)))
    return _at_least(seen, parts)


def _at_least(seen: int, parts: Iterable[_Part]) -> float:
    """P(a sum of independent numbers is at least what was seen)."""
    import numpy

    chances, least = numpy.ones(1), 0
    for low, one in parts:
        least += low
        if len(one) > 1:
            chances = numpy.convolve(chances, one)
    return 1.0 if seen <= least else min(1.0, float(chances[seen - least :].sum()))


def rows(measures: Mapping[str, Sequence[Cell]], alpha: float) -> list[TableRow]:
    """Every worker with company in its role, and every pair, by what is counted as bad; Holm's
    correction over all.

    With probability 1 - `alpha` nobody is accused where all are alike, and where within a group the
    router's choice of a worker has nothing to do with how hard a prompt is.

    * A worker is compared with the others among answers of the same worker of the other role. Where it shares none with
      them, as under two routers in turns, it is compared with all, and has to be worse also without the answers of any
      one of its partners, by the largest p: else that partner explains it.
    * A pair has to be worse both than its context worker with others and than its generation worker with others, by the
      larger of both p. When it is, its two workers are tested without it, and when that accuses both of them, they
      explain the pair.
    * Two workers that only ever work with each other are one row, a pair beside all others.

    Leaving out what others explain can only raise a p, so that it costs none of the level. Measures
    without any bad answer have no rows: given the totals, which the tests do, they could accuse
    nobody.
    """
    found = [
        one
        for measure, cells in measures.items()
        if any(c.bad for c in cells)
        for one in _test_measure(measure, cells)
    ]
    level = alpha / max(1, len(found))
    for measure, cells in measures.items():
        mine = [i for i, one in enumerate(found) if one.measure == measure]
        for i, one in zip(mine, _explain([found[i] for i in mine], cells, level), strict=True):
            found[i] = one
    corrected = holm([one.p for one in found])
    return [
        replace(one, p_holm=p, accused=p <= alpha) for one, p in zip(found, corrected, strict=True)
    ]


def _test_measure(measure: str, cells: Sequence[Cell]) -> list[TableRow]:
    """The rows of one measure, each by itself."""
    tied = _find_tied(cells)
    found = []
    for place, role in enumerate(ROLES):
        names = {name for c in cells if (name := (c.context, c.generation)[place]) is not None}
        bound = {pair[place] for pair in tied}
        if len(names) > 1:
            found += [
                _row((name,), role, measure, cells, _worker_p(cells, place, name))
                for name in sorted(names - bound)
            ]
    for pair in sorted(
        {
            (c.context, c.generation)
            for c in cells
            if c.context is not None and c.generation is not None
        }
    ):
        if pair in tied:
            p = _pair_p(cells, pair)
        elif any(len(partners) == 1 for partners in _partners(cells, pair)):
            # the answers of one of its workers are all its own, and so is that worker's row
            continue
        else:
            p = max(
                _pair_p([c for c in cells if c[place] == pair[place]], pair) for place in (0, 1)
            )
        found.append(_row(pair, PAIR, measure, cells, p))
    return found


def _explain(found: list[TableRow], cells: Sequence[Cell], level: float) -> list[TableRow]:
    """The rows with a higher p where other rows, below `level` whatever Holm makes of it, explain
    them.
    """
    tied = _find_tied(cells)
    strong = {
        one.worker
        for one in found
        if one.role == PAIR and one.p <= level and one.worker not in tied
    }
    rest = [c for c in cells if c[:2] not in strong]
    without = {
        (one.role, one.worker[0]): max(one.p, _worker_p(rest, ROLES.index(one.role), one.worker[0]))
        for one in found
        if one.role != PAIR and any(pair[ROLES.index(one.role)] == one.worker[0] for pair in strong)
    }
    by_two = {
        pair
        for pair in strong
        if all(without.get(one, 1.0) <= level for one in zip(ROLES, pair, strict=True))
    }
    return [
        replace(
            one, p=1.0 if one.worker in by_two else without.get((one.role, one.worker[0]), one.p)
        )
        for one in found
    ]


def _row(
    worker: tuple[str, ...], role: str, measure: str, cells: Sequence[Cell], p: float
) -> TableRow:
    known = [c for c in cells if None not in _who(c, role)]
    its = [c for c in known if _who(c, role) == worker]
    answers, bad = sum(c.answers for c in its), sum(c.bad for c in its)
    others, others_bad = sum(c.answers for c in known) - answers, sum(c.bad for c in known) - bad
    return TableRow(worker, role, measure, answers, bad, others, others_bad, p)


def _who(cell: Cell, role: str) -> tuple[str | None, ...]:
    both = (cell.context, cell.generation)
    return both if role == PAIR else (both[ROLES.index(role)],)


def _worker_p(cells: Sequence[Cell], place: int, name: str) -> float:
    """A worker beside the others of its role."""
    known = [c for c in cells if c[place] is not None]
    if any(c.stratum is not None for c in known):
        return no_worse_in_blocks(_blocks(known, place, name))
    if _is_informed(cells, place, name):
        return no_worse(_tables((c, c[place] == name, (c[1 - place], c.group)) for c in known))
    partners = {c[1 - place] for c in known if c[place] == name}
    left = (
        [[c for c in known if c[1 - place] != partner] for partner in partners]
        if len(partners) > 1
        else [known]
    )
    return max(
        (no_worse(_tables((c, c[place] == name, c.group) for c in some)) for some in left),
        default=1.0,
    )


def _blocks(cells: Sequence[Cell], place: int, name: str) -> Iterator[list[int]]:
    """For each stratum the bad answers of a worker, and of the others that answered with all its
    partners too.
    """
    strata: dict[Hashable, dict[str, dict[tuple[str | None, int], int]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    for c in cells:
        if (worker := c[:2][place]) is not None:
            strata[c.stratum][worker][c[:2][1 - place], c.answers] = c.bad
    for workers in strata.values():
        if (mine := workers.pop(name, None)) is not None:
            others = [its for its in workers.values() if mine.keys() <= its.keys()]
            yield [sum(mine.values()), *(sum(its[partner] for partner in mine) for its in others)]


def _pair_p(cells: Sequence[Cell], pair: tuple[str, ...]) -> float:
    """A pair beside all others."""
    return no_worse(
        _tables((c, c[:2] == pair, (c.stratum, c.group)) for c in cells if None not in c[:2])
    )


def _is_informed(cells: Sequence[Cell], place: int, name: str) -> bool:
    """Whether a worker shares a partner with another of its role."""
    mine = {c[1 - place] for c in cells if c[place] == name}
    return any(c[1 - place] in mine for c in cells if c[place] is not None and c[place] != name)


def _tables(marked: Iterable[tuple[Cell, bool, Hashable]]) -> list[tuple[int, int, int, int]]:
    """A table per stratum of cells, of which some are those of who is tested."""
    sums: dict[Hashable, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for cell, mine, stratum in marked:
        at = 0 if mine else 2
        sums[stratum][at] += cell.answers
        sums[stratum][at + 1] += cell.bad
    return [(a, b, c, d) for a, b, c, d in sums.values()]


def _partners(
    cells: Sequence[Cell], pair: tuple[str, ...]
) -> tuple[set[str | None], set[str | None]]:
    """With whom each of two workers worked."""
    return (
        {c.generation for c in cells if c.context == pair[0] and c.generation is not None},
        {c.context for c in cells if c.generation == pair[1] and c.context is not None},
    )


def _find_tied(cells: Sequence[Cell]) -> set[tuple[str, ...]]:
    """Pairs that only ever work with each other, where there are others."""
    pairs = {
        (c.context, c.generation)
        for c in cells
        if c.context is not None and c.generation is not None
    }
    if len(pairs) < 2:
        return set()
    return {
        pair for pair in pairs if all(len(partners) == 1 for partners in _partners(cells, pair))
    }
