"""The rule about wrong answers that are right for another request in flight with them.

Wrong answers equal the target of some other sample all the time, by chance: short numbers collide.
So the rule compares the samples that were in flight together with those that were not.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from serve_eval.frozen import freeze_places
from serve_eval.scorers import numeric
from serve_eval.stats.together import DRAWS, Together, compare_together
from serve_eval.workflows.diagnose.evidence import Evidence, TaskEvidence, base_of
from serve_eval.workflows.diagnose.finding import ALPHA, LEAST, AskedSample, Finding, ids

COMMON = 0.1
"""Share of the targets from which a target says nothing about whose it is, such as a letter."""
MOST_PAIRS, MOST_OF_ONE = 20_000, 200_000
"""Pairs that are tested, those with the rarest targets first, and most pairs of one target: those
of a target with more grow with the square of the samples, and its owners tell little."""
SHARED_BY = 3
"""Prompts that may share a sentence. Garbage, and words of a template, are shared by more."""
LEAST_SENTENCE, LEAST_NUMBERS = 40, 2
"""Characters and numbers of a sentence that shows whose answer it is from."""
LONGEST_TARGET = 100
"""Characters of the longest target that is compared."""
PAIRS_SHOWN = 3
MUTUAL = 2.0
"""Weight of a pair that matches both ways: chance makes few of them."""
SEED = 1

_LONG_NUMBER = re.compile(r"(?<![\d.,])\d{5,}(?![\d.,]*\d)")
_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")
_SENTENCE = re.compile(r"\n+|(?<=[.!?])\s+")


@freeze_places
class _Asked:
    """A scored sample of any task, with its place in time."""

    task: TaskEvidence
    one: AskedSample
    text: str
    target: str

    @property
    def span(self) -> tuple[float, float]:
        last = self.one.attempts[-1]
        return last.start_s, last.end_s

    @property
    def prompt(self) -> tuple[str, str]:
        """The prompt's name, the same for all repeats."""
        return self.task.name, base_of(self.one.id)


def foreign_answers(run: Evidence) -> Iterator[Finding]:
    """Yield a finding if wrong answers belong to requests in flight with them, beyond chance.

    This needs a random order of samples: otherwise neighbours are in flight together that are alike
    in their content. Answers of requests that had ended before are not counted.
    """
    if not run.in_random_order:
        return
    asked = [
        _Asked(
            task,
            one,
            one.response.text,
            _normalise(one.line.target.rpartition("####")[2]),
        )
        for task in run.tasks
        for one in task.texts
        if one.line is not None and one.response is not None and one.attempts
    ]
    pairs = _pair(asked)
    if len({i for i, _ in pairs}) < LEAST:
        return
    ordered = list(pairs)
    found = compare_together(
        [one.span for one in asked],
        [f"{one.task.name} {one.one.id.removeprefix(base_of(one.one.id))}" for one in asked],
        ordered,
        [pairs[pair] for pair in ordered],
        alpha=ALPHA * run.share,
        seed=SEED,
        draws=round((DRAWS + 1) / run.share) - 1,
    )
    together = [ordered[k] for k in found.observed]
    if found.p <= ALPHA * run.share and len({i for i, _ in together}) >= LEAST:
        yield _report(run, asked, sorted(together, key=lambda pair: -pairs[pair]), found)


def _report(
    run: Evidence,
    asked: Sequence[_Asked],
    together: Sequence[tuple[int, int]],
    found: Together,
) -> Finding:
    wrong = sum(one.one.bad for one in asked)
    owners: dict[int, int] = {}
    for i, j in together:
        owners.setdefault(i, j)
    told = (
        f"{len(owners)} of {wrong} wrong answers are the expected answer, or have a sentence, of"
        f" another request in flight with them (by chance {found.expected:.1f}): answers may reach"
        " the wrong requests"
    )
    shown = [
        f"{asked[i].one.id} has the answer of {asked[j].one.id} (both in flight for"
        f" {_overlap_s(asked[i], asked[j]):.2g} s)"
        for i, j in owners.items()
        if asked[i].one.shown and asked[j].one.shown
    ]
    told += f"; {', '.join(shown[:PAIRS_SHOWN])}" if shown else ""
    names = {one.task.name for one in asked}
    return Finding(
        "foreign_answers",
        told,
        change=(f"serve-eval check invariants {run.address} --canaries",),
        count=len(owners),
        of=wrong,
        explains=max(1, round(len(owners) - found.expected)),
        lost=sum(len(task.lost) for task in run.tasks),
        task=names.pop() if len(names) == 1 else None,
        samples=ids(asked[i].one for i in owners),
        p=found.p,
        p_below=found.p * round((DRAWS + 1) / run.share) < 1.5,  # one draw in all
    )


def _overlap_s(one: _Asked, other: _Asked) -> float:
    return min(one.span[1], other.span[1]) - max(one.span[0], other.span[0])


def _normalise(text: str) -> str:
    return numeric.normalise(text.strip()).strip()


def _pair(asked: Sequence[_Asked]) -> dict[tuple[int, int], float]:
    """Return the pairs of a wrong answer and a sample that it belongs to, with their weights.

    If a pair matches both ways, as after an exchange, other matches of the two hardly count.
    """
    share = _share_in_flight(asked)
    owned: dict[int, dict[int, float]] = defaultdict(dict)
    count = 0
    for wrong, owners in sorted(
        (*_match_targets(asked), *_match_sentences(asked)), key=lambda match: len(match[1])
    ):
        if len(wrong) * len(owners) > MOST_OF_ONE:
            continue
        weight = _weigh(share, len(owners))
        for i in wrong:
            for j in owners:
                if asked[i].prompt != asked[j].prompt and asked[i].target != asked[j].target:
                    owned[i].setdefault(j, weight)
                    count += 1
        if count >= MOST_PAIRS:
            break
    found = {}
    for i, owners_of in owned.items():
        both = [j for j in owners_of if i in owned.get(j, ())]
        for j, weight in owners_of.items():
            found[i, j] = MUTUAL * _weigh(share, len(both)) if j in both else weight
    return found


def _share_in_flight(asked: Sequence[_Asked]) -> float:
    """Return the mean share of the other samples that were in flight with a sample."""
    if len(asked) < 2:
        return 1.0
    starts, ends = sorted(one.span[0] for one in asked), sorted(one.span[1] for one in asked)
    together = [
        bisect_left(starts, one.span[1]) - bisect_right(ends, one.span[0]) - 1 for one in asked
    ]
    return min(0.99, max(1, sum(together)) / len(asked) / (len(asked) - 1))


def _weigh(share: float, owners: int) -> float:
    """Return the information, in bits, that one of `owners` samples was in flight by chance."""
    return -math.log2(1.0 - (1.0 - share) ** owners)


_Match = tuple[list[int], list[int]]
"""The samples with a wrong answer that has something, and those that it belongs to."""


def _match_targets(asked: Sequence[_Asked]) -> Iterator[_Match]:
    """Yield, for each target that is not common, the wrong answers that equal or contain it."""
    owners: dict[str, list[int]] = defaultdict(list)
    for j, one in enumerate(asked):
        if 0 < len(one.target) <= LONGEST_TARGET:
            owners[one.target].append(j)
    wrong: dict[str, list[int]] = defaultdict(list)
    for i, one in enumerate(asked):
        if one.one.bad:
            for claim in set(_list_claims(one)) & owners.keys():
                wrong[claim].append(i)
    for target, claiming in wrong.items():
        share = len(owners[target]) / len(asked)
        if share <= COMMON or len(owners[target]) == 1:
            yield claiming, owners[target]


def _list_claims(one: _Asked) -> Iterable[str]:
    """Yield what an answer says: what was extracted, else its last number, and long numbers."""
    answer = None if one.one.line is None else one.one.line.answer
    if answer is None:
        yield from map(_normalise, _NUMBER.findall(one.text)[-1:])
    else:
        yield _normalise(answer)
    yield from _LONG_NUMBER.findall(one.text)


def _match_sentences(asked: Sequence[_Asked]) -> Iterator[_Match]:
    """Yield, for each sentence with numbers that few answers share, the wrong and the right ones.

    It belongs to a right answer, in which it was of use.
    """
    for held in sorted(_list_shared(asked), key=lambda held: held[0]):
        if 1 < len({asked[i].prompt for i in held}) <= SHARED_BY:
            wrong = [i for i in held if asked[i].one.bad]
            right = [i for i in held if not asked[i].one.bad]
            if wrong and right:
                yield wrong, right


def _list_shared(asked: Sequence[_Asked]) -> Iterator[list[int]]:
    """Yield the samples that have a sentence, for each sentence of two or more.

    Most sentences occur once, so only their hashes are kept.
    """
    first, holders = dict[int, int](), dict[str, list[int]]()
    for i, one in enumerate(asked):
        for sentence in _list_sentences(one.text):
            if (known := first.setdefault(hash(sentence), i)) != i:
                holders.setdefault(sentence, [known]).append(i)
    for sentence, held in holders.items():
        # The first one may have another sentence with the same hash.
        found = held if sentence in _list_sentences(asked[held[0]].text) else held[1:]
        if len(found) > 1:
            yield found


def _list_sentences(text: str) -> set[str]:
    """Return the sentences of a text that show whose answer it is from."""
    long = (part for part in _SENTENCE.split(text) if len(part) >= LEAST_SENTENCE)
    return {
        sentence
        for part in long
        if len(sentence := " ".join(part.split()).lower()) >= LEAST_SENTENCE
        and len(_NUMBER.findall(sentence)) >= LEAST_NUMBERS
    }
