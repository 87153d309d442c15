"""Warn if prompts share a long text, such as a passage, and no group says so.

Their answers may be wrong together, and every test and margin would count one misread passage as
several drops. The instruction and the shots of a task are shared too, but by all prompts, or by all
of a subject, and are no reason.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from serve_eval.schema import Sample, is_mutable

NAME = "shared_text"
"""The word with which the warning begins."""
SUBJECT = "subject"
"""Key of the metadata by which a task has shots of its own for each subject."""
LONG = 200
"""Characters of a line of a prompt from which it is long. Its beginning and its end count."""
EVERYWHERE, INSTRUCTION = 0.95, 0.2
"""Share of the prompts from which a text belongs to the task: of a turn, and of a system turn."""
MANY = 0.1
"""Share of the prompts that must share a text with others before there is a warning."""
MOST_SAMPLES, MOST_TEXT = 2_000, 1 << 24
"""Numbers of samples, and of characters of their prompts, that are examined. Prompts on one passage
mostly stand next to each other, and a larger part of a large data set says no more."""


def warn_of_shared_texts(task: str, samples: Sequence[Sample]) -> str | None:
    """Return the warning about texts that samples without a group share, or None."""
    looked_at = list(_take(samples))
    if any(sample.group for sample in looked_at):
        return None
    found = _list_shared(looked_at)
    found = _leave_shots(looked_at, found)
    sharing = {place for one in found for place in one}
    if len(sharing) < max(2, MANY * len(looked_at)):
        return None
    largest = max(map(len, found))
    first, second = sorted(next(one for one in found if len(one) == largest))[:2]
    how = (
        "add `group:` to the case file"
        if is_mutable(task)
        else "set `group` of its samples: Sample(group=...)"
    )
    return (
        f"{NAME}: {len(sharing)} of {len(looked_at)} prompts share a long text with others, such as"
        f" {looked_at[first].id} and {looked_at[second].id}, and no group is declared: they may be"
        f" wrong together, and p and margins, which count each alone, then do not hold; {how}"
    )


def _take(samples: Sequence[Sample]) -> Iterator[Sample]:
    """Yield the first samples, up to the limits."""
    length = 0
    for _, sample in zip(range(MOST_SAMPLES), samples, strict=False):
        length += sum(len(text) for _, text in _list_texts(sample))
        if length > MOST_TEXT:
            return
        yield sample


def _list_texts(sample: Sample) -> list[tuple[bool, str]]:
    """Return the texts of a prompt, each with True if it is that of a system turn."""
    if isinstance(sample.prompt, str):
        return [(False, sample.prompt)]
    return [(turn.role == "system", turn.text) for turn in sample.prompt]


def _list_shared(samples: Sequence[Sample]) -> list[frozenset[int]]:
    """Return the places of the samples that share each long text which is not the task's own."""
    places: dict[tuple[bool, int], set[int]] = defaultdict(set)
    for place, sample in enumerate(samples):
        for system, text in _list_texts(sample):
            for line in text.splitlines():
                if len(line) >= LONG:
                    places[system, hash(line[:LONG])].add(place)
                    places[system, hash(line[-LONG:])].add(place)
    n = len(samples)
    return [
        frozenset(those)
        for (system, _), those in places.items()
        if 2 <= len(those) < n * (INSTRUCTION if system else EVERYWHERE)
    ]


def _leave_shots(
    samples: Sequence[Sample], found: Sequence[frozenset[int]]
) -> list[frozenset[int]]:
    """Return the texts but for those that all samples of a subject share: its shots."""
    by_subject: dict[str, set[int]] = defaultdict(set)
    for place, sample in enumerate(samples):
        if (subject := sample.metadata.get(SUBJECT)) is not None:
            by_subject[subject].add(place)
    shots = {frozenset(one) for one in by_subject.values()}
    return [one for one in found if one not in shots]
