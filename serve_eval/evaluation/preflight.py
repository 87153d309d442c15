"""Refuse plans that cannot succeed, before the first request.

Their answers may be wrong together, and every test and margin would count one misread passage as
several drops. The instruction and the shots of a task are shared too, but by all prompts, or by all
of a subject, and are no reason.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from serve_eval.errors import PlanError
from serve_eval.plan.prepared_task import PreparedTask
from serve_eval.plugins.values import load_verdict_rule
from serve_eval.schema import MEAN, MediaFile, MediaPart, Plan, Sample, Spec, is_mutable
from serve_eval.schema.media import media_url
from serve_eval.stats.clusters import cluster_keys

_HINT = (
    "Raise limits.max_request_bytes if the endpoint, and each proxy before it, takes as much (nginx"
    " takes 1 MB unless client_max_body_size says more). Or let the server read the files:"
    " --set connection.send_media=path."
)


def check_sizes(task: str, samples: Sequence[Sample], plan: Plan) -> None:
    """Raise PlanError for samples with media whose requests exceed `max_request_bytes`."""
    most, inline = plan.limits.max_request_bytes, plan.connection.send_media == "inline"
    sizes = ((sample.id, _count_bytes(sample, inline=inline)) for sample in samples)
    large = {name: size for name, size in sizes if size > most}
    if large:
        name = max(large, key=large.__getitem__)
        others = f", and {len(large) - 1} more requests exceed it" if len(large) > 1 else ""
        raise PlanError(
            f"{task}: the request of sample {name} has {large[name]:,} bytes; the limit is"
            f" {most:,}{others}",
            hint=_HINT,
        )


def _count_bytes(sample: Sample, *, inline: bool) -> int:
    """Return the bytes of the media of a sample as they are sent, with its texts if it has any."""
    if isinstance(sample.prompt, str) or not any(turn.media for turn in sample.prompt):
        return 0
    return sum(
        len(turn.text.encode()) + sum(_count_part(part, inline=inline) for part in turn.media)
        for turn in sample.prompt
    )


def _count_part(part: MediaPart, *, inline: bool) -> int:
    if not isinstance(part, MediaFile):
        return len(media_url(part))
    return (part.size + 2) // 3 * 4 if inline else len(part.path)


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


RULES = ("paired", "noninferiority")
"""The rules that pass if a margin is excluded."""
MARGIN = "margin"


def check_margins(plan: Plan, prepared: Sequence[PreparedTask]) -> None:
    """Raise PlanError if a run cannot exclude its margin of its reference, however equal it is."""
    sizes = [
        (p, len(p.reference.runs.values), plan.times(p.task.name))
        for p in prepared
        if p.reference is not None and p.reference.runs is not None
    ]
    if not plan.integration_test:
        check_pair_margins(plan.verdict, sizes, halved=plan.early_stop is not None)


def check_pair_margins(
    rule: Spec, sizes: Iterable[tuple[PreparedTask, int, int]], *, halved: bool = False
) -> None:
    """Raise PlanError for tasks, with the answers to a prompt of both sides, that are too small.

    The margin that the paired rule takes from the classic test is never too small for right/wrong
    answers, and is not checked. `halved`: early looks have half of the level.
    """
    if rule.name not in RULES or (rule.name == "paired" and rule.options.get(MARGIN) is None):
        return
    options = load_verdict_rule(rule.name).check_options(rule.options)
    margin = options.get(MARGIN, load_verdict_rule(rule.name).default(MARGIN))
    assert isinstance(margin, int | float)
    found = [
        told
        for p, before, after in sizes
        if (told := _describe_small(p, before, after, float(margin), halved=halved)) is not None
    ]
    if found:
        raise PlanError(
            [problem for problem, _ in found],
            hint="\n".join(dict.fromkeys(hint for _, hint in found)),
        )


def _describe_small(
    p: PreparedTask, before: int, after: int, margin: float, *, halved: bool
) -> tuple[str, str] | None:
    """Return the problem and what would do; None if the margin can be excluded."""
    from serve_eval.stats.pairs import count_pairs_of_repeats
    from serve_eval.stats.planning import least_excluded, num_pairs_to_exclude

    metric, name = p.task.metric, p.task.name
    if p.task.aggregation.name != MEAN.name or metric.lo is None or metric.hi is None:
        return None
    span = abs(metric.scale) * (metric.hi - metric.lo)
    alpha = p.hypothesis.alpha / (2.0 if halved else 1.0)
    n = len(p.dataset.samples) if p.part is None else p.part.total
    units, largest = _count_units(p)
    units = round(units * n / len(p.dataset.samples))
    # Groups of unequal sizes count by their sums, whose range is that of the largest.
    span *= largest * units / n
    repeats = count_pairs_of_repeats(before, after)
    if margin >= span or (needed := num_pairs_to_exclude(margin / span, alpha)) <= units * repeats:
        return None
    least = span * least_excluded(units * repeats, alpha)
    times = math.ceil(needed / units)
    rounded = math.ceil(100.0 * least + 1e-9) / 100.0
    grouped = "" if units == n else f" in {units} groups"
    return (
        f"{name}: a margin of {margin:g} points is out of reach: {n} prompts{grouped} with {before}"
        f" and {after} answers of the two sides exclude no drop below {least:.3g} points, even if"
        " all answers are equal",
        f"{name}: ask {math.ceil(needed / repeats * n / units)} prompts or more, or ask each"
        f" {times} times on both sides (--repeats {times}, and as many runs of the reference), or"
        f" set a margin of {rounded:g} points or more.",
    )


def _count_units(p: PreparedTask) -> tuple[int, int]:
    """Return the number of groups, of which a single prompt is one, and the largest one's size."""
    keys = cluster_keys([sample.group for sample in p.dataset.samples])
    if keys is None:
        return len(p.dataset.samples), 1
    sizes = Counter(keys)
    return len(sizes), max(sizes.values())
