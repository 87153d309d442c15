"""Choose the figure of an lm-eval task that is its value, and compute the other figures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serve_eval.errors import PlanError, ServeEvalError
from serve_eval.harness.measures import (
    DOCUMENT,
    IN_PERCENT,
    NOTHING_FOUND,
    Documents,
    Key,
    Measure,
    aggregate,
    choose,
    list_results,
    mean_of,
    measure_document,
    name_figure,
    number,
)
from serve_eval.schema import MEAN, Aggregation, Metric, Outcome, Response, Sample, Score, Scored


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A metric after a filter, identified by `key`.

    `in_percent`: a document's figure is between 0 and 1 and is shown in percent.
    """

    task: str
    measure: Measure
    key: Key
    in_percent: bool

    @property
    def metric(self) -> Metric:
        name, higher = self.measure.name, self.measure.higher_is_better
        if self.in_percent:
            return Metric(name=name, higher_is_better=higher)
        return Metric(name=name, higher_is_better=higher, lo=None, hi=None, scale=1.0)

    def aggregation(self, documents: Callable[[], Documents]) -> Aggregation:
        """Return how the value comes from the documents.

        It is lm-eval's own function unless it is a mean.
        """
        if self.measure.is_mean:
            return MEAN

        def of(scored: Scored) -> float:
            return aggregate(
                self.measure, [_item(documents(), sample, self.key) for sample, _ in scored]
            )

        return Aggregation(name=f"{self.measure.how} of {self.measure.name}", of=of)

    def score(self, here: Documents, sample: Sample, response: Response) -> Score:
        """Score an answer. Raises ServeEvalError if it gives no figure, or one out of range."""
        items, filtered = measure_document(
            here, sample.metadata[DOCUMENT], list_results(here, response)
        )
        value = self._compute_checked(items)
        left = filtered[self.key[1]][0]
        found = isinstance(left, str) and left != NOTHING_FOUND
        answer = left if found else _likeliest(sample, response) if sample.choices else None
        return Score(
            value=value,
            outcome=_outcome(value, left, in_percent=self.in_percent),
            answer=answer,
            kept=items,
        )

    def _compute_checked(self, items: Mapping[Key, Any]) -> float:
        name, key = self.task, self.key
        if key not in items:
            raise ServeEvalError(
                f"lm_eval:{name}: an answer has no {name_figure(key)}", hint=choose(name, items)
            )
        value = _value(self.measure, items[key])
        if value is None:
            raise ServeEvalError(
                f"lm_eval:{name}: {name_figure(key)} of an answer is {items[key]!r}, which is not"
                " a number",
                hint="lm-eval could not take its mean either: check the functions of the task.",
            )
        if self.in_percent and not 0.0 <= value <= 1.0:
            raise ServeEvalError(
                f"lm_eval:{name}: {self.measure.name} of an answer is {value:g}, not between 0"
                " and 1",
                hint=f"Show it unchanged: --set lm_eval:{name}.percent=false.",
            )
        return value


def choose_figure(
    name: str,
    config: Mapping[str, Any],
    measures: Mapping[str, Measure],
    *,
    metric: str | None,
    filter_name: str | None,
    percent: bool | None,
) -> Figure:
    """Return the figure that the options name, else the task's first one.

    Raises PlanError for an unknown filter.
    """
    filters = [one["name"] for one in config.get("filter_list") or ({"name": "none"},)]
    if filter_name is not None and filter_name not in filters:
        raise PlanError(f"lm_eval:{name}: no filter {filter_name!r}: it has {', '.join(filters)}")
    usual = next(iter(measures.values()))
    chosen = usual if metric is None else measures.get(metric) or mean_of(metric)
    return Figure(
        task=name,
        measure=chosen,
        key=(chosen.name, filters[0] if filter_name is None else filter_name),
        in_percent=chosen.is_mean and chosen.name in IN_PERCENT if percent is None else percent,
    )


def _value(measure: Measure, item: Any) -> float | None:
    """Return a document's figure as one number, or None if a mean lacks it.

    If the aggregation is not a mean, it is its value over this document alone.
    """
    if measure.is_mean:
        return number(item)
    try:
        return number(aggregate(measure, [item])) or 0.0
    except ServeEvalError:
        return 0.0  # some aggregations need several documents


def _outcome(value: float, left: Any, *, in_percent: bool) -> Outcome:
    if not in_percent or 0.0 < value < 1.0:
        return Outcome.PARTIAL
    if value >= 1.0:
        return Outcome.CORRECT
    return Outcome.UNPARSED if left == NOTHING_FOUND else Outcome.WRONG


def _likeliest(sample: Sample, response: Response) -> str | None:
    sums = [sum(values) for values in response.choice_logprobs or ()]
    return sample.choices[sums.index(max(sums))] if len(sums) > 1 else None


def _item(here: Documents, sample: Sample, key: Key) -> Any:
    try:
        return here.items[sample.id][key]
    except KeyError as error:
        raise ServeEvalError(
            f"{name_figure(key)} of sample {sample.id} is only known with its answer"
        ) from error


def others(
    here: Documents, measures: Mapping[str, Measure], key: Key, scored: Scored
) -> dict[str, float]:
    """Return the figures next to the value, by lm-eval's own aggregations.

    Omits those that cannot be computed here.
    """
    by_key: dict[Key, list[Any]] = {}
    for sample, _ in scored:
        for other, item in here.items.get(sample.id, {}).items():
            if other != key:
                by_key.setdefault(other, []).append(item)
    told = {}
    for other, items in by_key.items():
        measure = measures.get(other[0]) or mean_of(other[0])
        try:
            value = number(aggregate(measure, items))
        except ServeEvalError:
            continue
        if value is not None:
            told[name_figure(other)] = value * (
                100.0 if measure.is_mean and other[0] in IN_PERCENT else 1.0
            )
    return dict(sorted(told.items()))
