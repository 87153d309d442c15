"""Read the questions of BFCL by category, each with its weight in the value."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Struct

from serve_eval.datasets import local
from serve_eval.datasets.source import Source
from serve_eval.errors import DatasetError
from serve_eval.schema import Aggregation, Sample, Scored, Sums
from serve_eval.tasks._bfcl_literals import Language

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


SHA256 = {
    "BFCL_v4_simple_python.json": (
        "82dd63ba502eb2520c6b5d1d9a5c4b590e03ff261565175561f6228a367d1991"
    ),
    "possible_answer/BFCL_v4_simple_python.json": (
        "90cd5bc653690ee8e459b5b3f3fc9458606f7f3fcbf795bb51b7dc581f8c86dc"
    ),
    "BFCL_v4_simple_java.json": (
        "13d2303a125b08754f0e41995b9273b5005fa8ed8ebfaa24ef53b4d83c4b5c6e"
    ),
    "possible_answer/BFCL_v4_simple_java.json": (
        "78f25616084044fa05bbfcee68e03f6ececb222bdd5cb3b7783a675fb3366e35"
    ),
    "BFCL_v4_simple_javascript.json": (
        "329e67fedf79a6243d93dbda4b388d12bd2d31f1f2163d92cb6ef676d1764f44"
    ),
    "possible_answer/BFCL_v4_simple_javascript.json": (
        "e2f9f2e51d88e0c8056ffbf1a3dd3d02eb032532d2b5d98c9cc9003385bdd56b"
    ),
    "BFCL_v4_multiple.json": ("aef168155ebd74b7ac2401198b201343bc7d16d7a3d7e0d4e6d8ee82c6969b2a"),
    "possible_answer/BFCL_v4_multiple.json": (
        "244e00ce9395df948bcafc7bee64e8f9c87ef70887587d83cae45b13699f3047"
    ),
    "BFCL_v4_parallel.json": ("19f51a82eff42e5d62541aa500115a056eb78f437c2ba1f10415fd7c8e5dda84"),
    "possible_answer/BFCL_v4_parallel.json": (
        "8a6aa19c1adddc6a5a2f7e40f9dbf30cc7e95815e7b830c90589ab318229e0f0"
    ),
    "BFCL_v4_parallel_multiple.json": (
        "8863ea8433239f55c5f016154cf0830853c89f693c6ea270396a2fa121960579"
    ),
    "possible_answer/BFCL_v4_parallel_multiple.json": (
        "5ebf24f458c1f16300c05505d83d6f0a1b68b79be273a033febd0d4f840507e3"
    ),
    "BFCL_v4_live_simple.json": (
        "1af2ac87dca47556db7b7e37e51e28b459a38b594e3c7b3c792b4903598ca0c4"
    ),
    "possible_answer/BFCL_v4_live_simple.json": (
        "fec9cfa9744a936f9126981e85a2023da1e63e273eafebc81923a1162fad70ce"
    ),
    "BFCL_v4_live_multiple.json": (
        "fd8ccfad4d911420d0e3341dbe2fff77d1d341da934248b9bb2bda24ab3a10c8"
    ),
    "possible_answer/BFCL_v4_live_multiple.json": (
        "97e90d59c5bd76c55a2920ce93e5566e9046307d3f558578f085f9d3a56c3084"
    ),
    "BFCL_v4_live_parallel.json": (
        "6c26e9fdc3350cf596e6d1ea9c179cbff834761bccf562f4141ed29a839ca421"
    ),
    "possible_answer/BFCL_v4_live_parallel.json": (
        "8a9f189ff0e832ebbbbdade1fd95a7dbcc67406e9177df3f0aad76f59ab00350"
    ),
    "BFCL_v4_live_parallel_multiple.json": (
        "21d4b9319c1faac431e22757b367ea28917fe467364c3a4b17f16ec06d4f6e79"
    ),
    "possible_answer/BFCL_v4_live_parallel_multiple.json": (
        "f5b5f360556c5feb51db46fb9f56ee4b304f4b45b161599bbb14161c98a2873f"
    ),
    "BFCL_v4_irrelevance.json": (
        "2b6ed4c2e992cdcf5f1678a701851f944bef7550ee026ed1ddb89efed5be01a6"
    ),
    "BFCL_v4_live_irrelevance.json": (
        "6559fda2beaceb609a2cd2e504c65b4a56cb448e1ef88fddfd199e163d163349"
    ),
    "BFCL_v4_live_relevance.json": (
        "e03f9e241657a137cba48a89ee12f47bf3fcb7e4f6274263e9c699a0c974203a"
    ),
}
"""Checksums of the files at the commit that the task names."""
T = TypeVar("T")


class RowTurn(Struct, frozen=True):
    """A message of a question."""

    role: str
    content: str


class QuestionRow(Struct, frozen=True):
    """A question: the messages of its only turn, and the functions that it offers."""

    id: str
    question: tuple[tuple[RowTurn, ...]]
    function: tuple[dict[str, Any], ...]


class _Answer(Struct, frozen=True):
    id: str
    ground_truth: tuple[dict[str, dict[str, Any]], ...]


class ReadCategory(NamedTuple):
    """The rows of a category, their answers by id, if it has any, and its files."""

    rows: list[QuestionRow]
    answers: Mapping[str, tuple[dict[str, dict[str, Any]], ...]]
    files: tuple[local.DataFile, ...]


def name_file(category: str) -> str:
    """Return the file of a category."""
    return f"BFCL_v4_{category}.json"


def read_category(source: Source, folder: Path, category: str) -> ReadCategory:
    """Return a category. Raises DatasetError for a missing or malformed file."""
    questions = local.read_file(_find(source, folder, name_file(category)))
    rows = _lines(questions, QuestionRow)
    if CATEGORIES[category].wanted != "calls":
        return ReadCategory(rows, {}, (questions,))
    gold = local.read_file(_find(source, folder, f"possible_answer/{name_file(category)}"))
    answers = {one.id: one.ground_truth for one in _lines(gold, _Answer)}
    if lacking := [row.id for row in rows if not answers.get(row.id)]:
        raise DatasetError(f"{gold.path}: no answer to {lacking[0]}", hint=local.advice(source))
    return ReadCategory(rows, answers, (questions, gold))


def _find(source: Source, folder: Path, name: str) -> Path:
    if not (folder / name).is_file():
        raise DatasetError(
            f"{source.name} is incomplete: {folder / name} is missing", hint=local.advice(source)
        )
    return folder / name


def _lines(file: local.DataFile, kind: type[T]) -> list[T]:
    decoder = msgspec.json.Decoder(kind)
    found = []
    for number, line in enumerate(file.content.splitlines(), 1):
        if line.strip():
            try:
                found.append(decoder.decode(line))
            except msgspec.DecodeError as error:
                raise DatasetError(f"{file.path}:{number}: {error}") from error
    if not found:
        raise DatasetError(f"{file.path}: no rows")
    return found
