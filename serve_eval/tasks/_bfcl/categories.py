"""Categories of BFCL v4 with one turn, and the weight of each in the value."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from serve_eval.schema import Aggregation, Sample, Scored, Sums
from serve_eval.tasks._bfcl.literals import Language

Wanted = Literal["calls", "no call", "any call"]

NON_LIVE, LIVE, IRRELEVANCE = "non-live", "live", "irrelevance"
"""The parts of the leaderboard's overall score that have one turn, each with the same weight."""
CATEGORY = "category"
"""Key of the metadata of a sample."""
WEIGHT, CORRECT = "weight", "weighted correct"
"""Parts of a score; the first is also a key of the metadata of a sample."""


@dataclass(frozen=True, slots=True)
class Category:
    """A category: its published rows, what is right, and the part that it counts in, if any.

    Categories of one `kind` differ in their language and count in a part as one ("": its own).
    """

    rows: int
    wanted: Wanted
    part: str | None
    kind: str = ""
    language: Language = "python"


CATEGORIES: Mapping[str, Category] = {
    "simple_python": Category(400, "calls", NON_LIVE, "simple"),
    "simple_java": Category(100, "calls", NON_LIVE, "simple", "java"),
    "simple_javascript": Category(50, "calls", NON_LIVE, "simple", "javascript"),
    "multiple": Category(200, "calls", NON_LIVE),
    "parallel": Category(200, "calls", NON_LIVE),
    "parallel_multiple": Category(200, "calls", NON_LIVE),
    "live_simple": Category(258, "calls", LIVE),
    "live_multiple": Category(1053, "calls", LIVE),
    "live_parallel": Category(16, "calls", LIVE),
    "live_parallel_multiple": Category(24, "calls", LIVE),
    "irrelevance": Category(240, "no call", IRRELEVANCE),
    "live_irrelevance": Category(884, "no call", IRRELEVANCE),
    "live_relevance": Category(16, "any call", None),
}
"""The leaderboard shows live_relevance and does not count it."""


def weigh(asked: Sequence[str]) -> Mapping[str, float]:
    """Return the weight of a sample of each category, of which the largest is 1.

    `asked` has the category of every sample. Parts have the same weight, and so have the kinds of a
    part and the languages of a kind, except that all samples of the part live have the same. A
    category without a part has weight 0, unless nothing else is asked.
    """
    counts = Counter(asked)
    parts = {CATEGORIES[name].part for name in counts} - {None}
    if not parts:
        return dict.fromkeys(counts, 1.0)
    weights = dict.fromkeys(counts, 0.0)
    for part in parts:
        inside = {name: n for name, n in counts.items() if CATEGORIES[name].part == part}
        shares = _share(part, inside)
        weights.update({name: shares[name] / inside[name] for name in inside})
    most = max(weights.values())
    return {name: weight / most for name, weight in weights.items()}


def _share(part: str | None, counts: Mapping[str, int]) -> Mapping[str, float]:
    """Return the share of each category in its part, from their numbers of samples."""
    if part == LIVE:
        size = sum(counts.values())
        return {name: count / size for name, count in counts.items()}
    kinds = Counter(CATEGORIES[name].kind or name for name in counts)
    return {name: 1 / len(kinds) / kinds[CATEGORIES[name].kind or name] for name in counts}


def _mean_of_part(part: str, means: Mapping[str, tuple[float, int]]) -> Mapping[str, object]:
    """Return the value of a part from the mean and the number of scored samples by category."""
    counts = {name: count for name, (_, count) in means.items()}
    shares = _share(part, counts)
    value = sum(shares[name] * mean for name, (mean, _) in means.items())
    return {"value": value, "scored": sum(counts.values())}


def break_down(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
    """Return the accuracy in percent by category, and that of the parts that make the value."""
    found: dict[str, list[float]] = defaultdict(list)
    for sample, value in scored:
        found[sample.metadata[CATEGORY]].append(value)
    names = [name for name in CATEGORIES if name in found]
    means = {name: 100.0 * sum(found[name]) / len(found[name]) for name in names}
    parts: dict[str, object] = {}
    for part in (NON_LIVE, LIVE, IRRELEVANCE):
        inside = [name for name in names if CATEGORIES[name].part == part]
        if inside:
            parts[part] = _mean_of_part(
                part, {name: (means[name], len(found[name])) for name in inside}
            )
    return {
        "part": parts,
        CATEGORY: {name: {"value": means[name], "scored": len(found[name])} for name in names},
    }


def _value(sums: Sequence[float]) -> float:
    correct, weight = sums
    return correct / weight if weight else 0.0


def _average(scored: Scored) -> float:
    pairs = [(weight_of(sample), score.value) for sample, score in scored]
    return _value((sum(w * value for w, value in pairs), sum(w for w, _ in pairs)))


def weight_of(sample: Sample) -> float:
    """Return the weight of a sample in the value."""
    return float(sample.metadata[WEIGHT])


LEADERBOARD = Aggregation(
    name="mean of non-live, live and irrelevance",
    of=_average,
    monotone=True,
    sums=Sums(parts=(CORRECT, WEIGHT), value=_value, limits=(1.0, 0.0)),
)
"""The weighted mean that equals the leaderboard's mean of means if every sample is scored."""


def interleave(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the category and the place of every sample, so that any first part has all kinds."""
    placed = [
        ((place + 0.5) / count, rank, name, place)
        for rank, (name, count) in enumerate(counts.items())
        for place in range(count)
    ]
    return [(name, place) for _, _, name, place in sorted(placed)]


def of_names(names: Collection[str]) -> list[str]:
    """Return these categories in the order of the leaderboard."""
    return [name for name in CATEGORIES if name in names]
