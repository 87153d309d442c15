"""Find the workers that give more bad answers than the others, from a table worker x answers.

It is a test of labels. Under "all are alike" the router's choice carries no information about an
answer. With the margins of the table fixed, a worker's number of bad answers is then hypergeometric
(Fisher 1934), in whatever way the answers depend on their prompts. A router that sends hard prompts
to one server more often breaks that premise, so answers are compared within groups of similar
prompts. Over strata, such as these groups, the numbers are summed (Birch 1964; the strata of the
exact test of Mantel and Haenszel's setting). If every worker got the same prompts with each
partner, all answers of a worker to a prompt are permuted together: at temperature 0 a server may
repeat its answer with every partner, and one answer must not count as several pieces of evidence.
For the same reason, prompts are permuted and not answers if a run repeated them
(serve_eval.stats.no_worse).

To separate context from generation workers, those of one role are compared among answers that share
the worker of the other role. A bad generation worker then does not make a context worker look bad,
even if a round-robin router never mixes all of them. Pairs are tested for what no single worker
explains.

A router with affinity sends similar prompts to one server, and similar prompts are equally hard.
The number of pairs of answers that share both worker and kind of prompt is then larger than if
workers are assigned at random. The test permutes the workers over the answers (Fisher 1935; the
statistic is that of Pearson's test of independence, whose asymptotic distribution fails if most
cells hold an answer or two). It stops early if the observed dependence is not rare (Besag and
Clifford 1991).
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

from serve_eval.errors import ServeEvalError
from serve_eval.stats.clusters import number_keys
from serve_eval.stats.multiplicity import holm
from serve_eval.stats.no_worse import (
    AnsweredPrompt,
    no_worse,
    no_worse_by_prompt,
    no_worse_in_blocks,
)

if TYPE_CHECKING:
    import numpy
    from numpy.typing import NDArray


CONTEXT, GENERATION, PAIR = "context", "generation", "pair"
ROLES = (CONTEXT, GENERATION)


class Cell(NamedTuple):
    """Answers that the same workers produced, and the number of bad ones among them.

    A worker is None if there is none of that role or it is not known. Only answers of one `stratum`
    are compared, such as those to a prompt that all workers got; each worker then has one cell with
    each partner. None: an answer of a run, whose router chose. Those are compared only within one
    `group` of prompts, which the router has no reason to treat differently by difficulty. `prompt`
    is that of a single answer of a run that asked each prompt several times; a prompt has one
    group.
    """

    context: str | None
    generation: str | None
    answers: int
    bad: int
    stratum: Hashable = None
    group: Hashable = None
    prompt: Hashable = None


@dataclass(frozen=True, slots=True)
class TableRow:
    """A worker, or a pair of a context and a generation worker, against all others of its role."""

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


def rows(measures: Mapping[str, Sequence[Cell]], alpha: float) -> list[TableRow]:
    """Return every worker with others in its role and every pair, by measure, corrected by Holm.

    With probability 1 - `alpha` no worker is accused if all are alike and if, within a group, the
    router's choice of worker is unrelated to a prompt's difficulty.

    * A worker is compared with the others among answers of the same worker of the other role. If it
      shares none with them, as under two round-robin routers, it is compared with all. It must then
      also be worse without the answers of any one of its partners, by the largest p: else that
      partner explains it.
    * A pair must be worse than its context worker with others and than its generation worker with
      others, by the larger p. If so, its two workers are tested without it; if that accuses both,
      they explain the pair.
    * Two workers that only work with each other are one row, a pair against all others.

    Excluding explained answers can only raise a p, so it keeps the level. Measures without a bad
    answer have no rows: given the totals, they could accuse no worker.
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
    """Return the rows of one measure, each tested on its own."""
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
            # One of its workers has no other partner, so that worker's row covers the pair.
            continue
        else:
            p = max(
                _pair_p([c for c in cells if c[place] == pair[place]], pair) for place in (0, 1)
            )
        found.append(_row(pair, PAIR, measure, cells, p))
    return found


def _explain(found: list[TableRow], cells: Sequence[Cell], level: float) -> list[TableRow]:
    """Return the rows, with a higher p if other rows below `level` explain them.

    `level` is the strictest level of Holm's correction.
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
    """Return p of a worker against the others of its role."""
    known = [c for c in cells if c[place] is not None]
    if any(c.stratum is not None for c in known):
        return no_worse_in_blocks(_blocks(known, place, name))
    if _is_informed(cells, place, name):
        return _compare([(c, c[place], c[1 - place]) for c in known], name)
    partners = {c[1 - place] for c in known if c[place] == name}
    left = (
        [[c for c in known if c[1 - place] != partner] for partner in partners]
        if len(partners) > 1
        else [known]
    )
    return max(
        (_compare([(c, c[place], None) for c in some], name) for some in left),
        default=1.0,
    )


def _blocks(cells: Sequence[Cell], place: int, name: str) -> Iterator[list[int]]:
    """Yield per stratum the bad answers of a worker, then those of others with all its partners."""
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
    """Return p of a pair against all others."""
    return _compare([(c, c[:2], c.stratum) for c in cells if None not in c[:2]], pair)


_Labelled = tuple[Cell, Hashable, Hashable]
"""A cell, its worker or pair, and the stratum within which it is compared."""


def _compare(cells: Sequence[_Labelled], tested: Hashable) -> float:
    """Return p of a worker or a pair against the others, within strata and groups of prompts."""
    if any(c.prompt is not None for c, _, _ in cells):
        return no_worse_by_prompt(_by_prompt(cells), tested)
    return no_worse(_tables((c, name == tested, (stratum, c.group)) for c, name, stratum in cells))


def _by_prompt(cells: Iterable[_Labelled]) -> Iterator[AnsweredPrompt]:
    """Yield the answers to each prompt in one stratum, so that each prompt counts once.

    That is the stratum, such as a partner, in which most workers answered it, or most often. The
    answers do not matter for this choice.
    """
    found: dict[Hashable, dict[Hashable, dict[Hashable, list[bool]]]] = {}
    groups: dict[Hashable, Hashable] = {}
    for c, name, stratum in cells:
        groups[c.prompt] = c.group
        workers = found.setdefault(c.prompt, {}).setdefault(stratum, {})
        workers.setdefault(name, []).append(c.bad > 0)
    for prompt, strata in found.items():
        stratum, workers = max(
            strata.items(), key=lambda one: (len(one[1]), sum(map(len, one[1].values())))
        )
        yield AnsweredPrompt((groups[prompt], stratum), workers)


def _is_informed(cells: Sequence[Cell], place: int, name: str) -> bool:
    """Return True if a worker shares a partner with another of its role."""
    mine = {c[1 - place] for c in cells if c[place] == name}
    return any(c[1 - place] in mine for c in cells if c[place] is not None and c[place] != name)


def _tables(marked: Iterable[tuple[Cell, bool, Hashable]]) -> list[tuple[int, int, int, int]]:
    """Return a table per stratum of cells, some of which belong to the tested worker."""
    sums: dict[Hashable, list[int]] = defaultdict(lambda: [0, 0, 0, 0])
    for cell, mine, stratum in marked:
        at = 0 if mine else 2
        sums[stratum][at] += cell.answers
        sums[stratum][at + 1] += cell.bad
    return [(a, b, c, d) for a, b, c, d in sums.values()]


def _partners(
    cells: Sequence[Cell], pair: tuple[str, ...]
) -> tuple[set[str | None], set[str | None]]:
    """Return the partners of each of two workers."""
    return (
        {c.generation for c in cells if c.context == pair[0] and c.generation is not None},
        {c.context for c in cells if c.generation == pair[1] and c.context is not None},
    )


def _find_tied(cells: Sequence[Cell]) -> set[tuple[str, ...]]:
    """Return pairs that only work with each other, if there are other pairs."""
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


PERMUTATIONS, AT_ONCE, ENOUGH = 999, 111, 20
"""Maximum number of permutations, and number that is computed together. The test stops as soon as
ENOUGH permutations are at least as far from independence as the observation."""
MOST = 5000
"""Answers that are used, evenly spread over all: enough to show any dependence that affects a
count."""


def dependence(workers: Sequence[Hashable], kinds: Sequence[Hashable], *, seed: int = 0) -> float:
    """Return P(workers and kinds are as dependent as observed | assigned at random).

    There is one pair of worker and kind per answer. The result is at least 1 / (PERMUTATIONS + 1);
    1 if there is only one worker or one kind. Raises ServeEvalError for sequences of different
    lengths.
    """
    if len(workers) != len(kinds):
        raise ServeEvalError(
            f"{len(workers)} workers and {len(kinds)} kinds do not make one pair per answer"
        )
    import numpy

    step = max(1, -(-len(workers) // MOST))
    rows, columns = number_keys(workers[::step]), number_keys(kinds[::step])
    if not len(rows) or not rows.any() or not columns.any():
        return 1.0
    height, width = int(rows.max()) + 1, int(columns.max()) + 1
    expected = numpy.outer(numpy.bincount(rows), numpy.bincount(columns)).ravel()

    def statistics(dealt: NDArray[numpy.int64]) -> NDArray[numpy.float64]:
        """Return Pearson's statistic, up to constants, of each row of workers."""
        first = numpy.arange(len(dealt))[:, None] * (height * width)
        counts = numpy.bincount(
            (first + dealt * width + columns).ravel(), minlength=len(dealt) * height * width
        )
        squares: NDArray[numpy.float64] = (counts.reshape(len(dealt), -1) ** 2 / expected).sum(
            axis=1
        )
        return squares

    seen, random, larger = (
        statistics(rows[None, :])[0] * (1.0 - 1e-12),
        numpy.random.default_rng(seed),
        0,
    )
    for tried in range(0, PERMUTATIONS, AT_ONCE):
        dealt = random.permuted(numpy.tile(rows, (AT_ONCE, 1)), axis=1)
        as_far = numpy.flatnonzero(statistics(dealt) >= seen)
        if larger + len(as_far) >= ENOUGH:
            return ENOUGH / (tried + int(as_far[ENOUGH - larger - 1]) + 1)
        larger += len(as_far)
    return (1 + larger) / (1 + PERMUTATIONS)


def find_cut(values: Sequence[float], best: float | None = None) -> float:
    """Return the score below which scores are low. Higher is better; there is at least one score.

    It is the median, unless many scores are equal. Then the median itself may be the score of what
    lost a part: of 60 answers with half of the marks and 40 with all of them, none is below the
    median. So the cut is the score, or the `best` possible one if that is known, that leaves a
    share below it as near to a half as possible, but not none. Of two equally near ones it is the
    lower. If all scores are the best, or if all are equal and the best is not known, none is low.
    """
    ordered = sorted(values)
    candidates = dict.fromkeys(ordered if best is None else (*ordered, max(best, ordered[-1])))
    below = {cut: bisect_left(ordered, cut) for cut in candidates}
    low = [cut for cut, count in below.items() if count]
    return (
        min(low, key=lambda cut: (abs(2 * below[cut] - len(ordered)), cut)) if low else ordered[0]
    )
