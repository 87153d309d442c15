"""Order, name and group samples, and aggregate their scores by other ways than the mean.

Data sets seldom give a document an id of its own: those of LongBench are ids of questions. The text
itself identifies it.

`schema.Aggregation` describes which features such aggregations exclude.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any

from serve_eval.errors import ServeEvalError
from serve_eval.plugins.setting import Setting
from serve_eval.schema import (
    Aggregation,
    Breakdown,
    Metric,
    Outcome,
    Response,
    Sample,
    Score,
    Scored,
    Sums,
)
from serve_eval.scorers.likelihood import negative_log_likelihood

NumSamples = Annotated[int, Setting("Number of samples to ask.")]
NumFewshot = Annotated[int, Setting("Number of solved examples before each question.")]
RandomSeed = Annotated[int, Setting("Seed of the order of the samples and of what is drawn.")]
ByChat = Annotated[
    bool, Setting("Ask by chat: messages in the model's chat template, not a bare text.")
]
Multiturn = Annotated[
    bool, Setting("Make each solved example a pair of turns. Needs apply_chat_template.")
]
StopsOfSuite = Annotated[
    bool,
    Setting("Send the stop strings of a base model by chat too, as TensorRT-LLM's suite does."),
]


def shuffle(count: int, seed: int) -> list[int]:
    """Return the order of `datasets.Dataset.shuffle(seed)`."""
    import numpy

    return [int(i) for i in numpy.random.default_rng(seed).permutation(count)]


LONG = 200
"""Characters from which a text is a document that questions may share."""
_DIGITS = 12


def name_document(text: str) -> str:
    """Return the name of a document: a hash of its text without white space at its ends."""
    return f"document {hashlib.sha256(text.strip().encode()).hexdigest()[:_DIGITS]}"


def find_document_field(rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return the field of rows that holds a long text which some, but not all, of them share.

    Of several fields, it is that with the most characters. None if there is none.
    """
    lengths: dict[str, int] = {}
    for name in dict.fromkeys(name for row in rows for name in row):
        texts = [text for row in rows if isinstance(text := row.get(name), str)]
        times = Counter(text for text in texts if len(text) >= LONG)
        if len(times) > 1 and max(times.values()) > 1:
            lengths[name] = sum(map(len, texts))
    return max(lengths, key=lambda name: lengths[name], default=None)


def mean_of_means(name: str, *levels: Callable[[Sample], str]) -> Aggregation:
    """Return the nested mean over groups, so that every group of a level has the same weight.

    It is the mean over the groups of the first level of the mean over those of the next, and so on
    down to the samples: `mean_of_means("mean of 6 groups", group_of, data_set_of)`.
    """

    def of(scored: Scored) -> float:
        leaves: dict[tuple[str, ...], list[float]] = defaultdict(list)
        for sample, score in scored:
            leaves[tuple(level(sample) for level in levels)].append(score.value)
        means = {place: _mean(values) for place, values in leaves.items()}
        while () not in means:
            above: dict[tuple[str, ...], list[float]] = defaultdict(list)
            for place, mean in means.items():
                above[place[:-1]].append(mean)
            means = {place: _mean(values) for place, values in above.items()}
        return means[()]

    return Aggregation(name=name, of=of, monotone=True)


def of_sums(name: str, sums: Sums) -> Aggregation:
    """Return the function of sums over all samples as an aggregation.

    Every score has the parts. A missing answer leaves the sums unknown, so there are no bounds.
    """

    def of(scored: Scored) -> float:
        rows = [[score.parts[part] for part in sums.parts] for _, score in scored]
        return sums.value([math.fsum(column) for column in zip(*rows, strict=True)])

    return Aggregation(name=name, of=of, sums=sums)


def ratio_of_sums(
    name: str,
    over: str,
    under: str,
    *,
    then: Callable[[float], float] = float,
    limits: tuple[float, float] | None = None,
) -> Aggregation:
    """Return `then` of the sum of part `over` divided by the sum of part `under`.

    The word error rate is edits divided by words. Perplexity is `math.exp` of negative
    log-likelihoods divided by tokens. Raises ServeEvalError if the lower sum is 0.
    """

    def value(sums: Sequence[float]) -> float:
        above, below = sums
        if below == 0.0:
            raise ServeEvalError(
                f"{name}: the answers have no {under}",
                hint="Check that the endpoint reports the values that are summed.",
            )
        return then(above / below)

    return of_sums(name, Sums(parts=(over, under), value=value, limits=limits))


def average(values: Sequence[float]) -> Mapping[str, float]:
    """Return the entry of a group in a breakdown: its value in points and its scored samples."""
    return {"value": 100.0 * sum(values) / len(values), "scored": len(values)}


def tabulate(tables: Mapping[str, Mapping[Any, Sequence[float]]]) -> Mapping[str, object]:
    """Return the breakdown of the values of groups, in the order of the groups."""
    return {
        name: {group: average(values) for group, values in sorted(table.items())}
        for name, table in tables.items()
        if table
    }


def break_down_by(groups_of: Mapping[str, Callable[[Sample], str | None]]) -> Breakdown:
    """Return the breakdown with a table for each name, whose function gives a sample's group.

    A sample without a group is not in the table.
    """

    def of(scored: Iterable[tuple[Sample, float]]) -> Mapping[str, object]:
        tables: dict[str, dict[str, list[float]]] = {name: {} for name in groups_of}
        for sample, value in scored:
            for name, group_of in groups_of.items():
                if (group := group_of(sample)) is not None:
                    tables[name].setdefault(group, []).append(value)
        return tabulate(tables)

    return of


def read_entry(name: str, otherwise: str | None = None) -> Callable[[Sample], str | None]:
    """Return the function that reads an entry of a sample's metadata."""
    return lambda sample: sample.metadata.get(name, otherwise)


def break_down(*names: str) -> Breakdown:
    """Return the breakdown by these entries of the metadata."""
    return break_down_by({name: read_entry(name) for name in names})


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return math.fsum(known) / len(known)


NATS, TOKENS = "nats", "tokens"
CORPUS = ratio_of_sums("perplexity of all tokens", NATS, TOKENS, then=math.exp)
NO_GOLD = "the log-probability of a text is no answer"
METRIC = Metric(name="perplexity", higher_is_better=False, lo=1.0, hi=None, scale=1.0)


def score(sample: Sample, response: Response) -> Score:
    """Return the exponential of the mean of -log p over the tokens of a text."""
    told = response.prompt_logprobs
    assert told is not None  # without them the client returns a failure
    nats, tokens = negative_log_likelihood(told)
    value = math.exp(nats / tokens) if tokens else 1.0
    return Score(
        value=value,
        outcome=Outcome.PARTIAL,
        answer=f"{value:.4f}",
        parts={NATS: nats, TOKENS: float(tokens)},
    )


def all_tokens(scored: Scored) -> Mapping[str, float]:
    """Return the perplexity of all tokens together, in which long texts weigh more."""
    return {CORPUS.name: CORPUS.of(scored)}


def answers(sample: Sample) -> tuple[str, str]:
    """Return the log-probability of every token of an expected and of an unexpected text."""
    return "-0.5", "-3"
